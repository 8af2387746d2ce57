#include "graph/effects.h"

namespace mlcc::graph {

bool is_pure(const Node& node) {
  if (node.op() != Op::kExtern) return node.op() != Op::kCopy;  // a copy is a tensor of its own
  const ExternCall& call = node.extern_call();
  return !has_effects(node) && !call.facts.aliases && call.regions.empty();  // not compared
}

bool writes_memory(const Node& node) {
  if (node.op() != Op::kExtern) return false;
  const ExternFacts& facts = node.extern_call().facts;
  return facts.effects || facts.begins || facts.waits || !facts.mutates.empty();
}

bool has_effects(const Node& node) {
  if (node.op() != Op::kExtern) return false;
  return node.extern_call().facts.random || writes_memory(node);
}

}  // namespace mlcc::graph
