#include "loop/names.h"

namespace mlcc::loop {

void Names::close() {
  for (const std::string& name : blocks_.back()) visible_.erase(name);
  blocks_.pop_back();
}

void Names::define(const Token& token, const std::string& name, Entry entry) {
  if (!defined_.insert(name).second) Lexer::fail_at(token, "%", name, " is defined twice");
  visible_.emplace(name, entry);
  blocks_.back().push_back(name);
}

const Names::Entry* Names::find(const std::string& name) const {
  const auto found = visible_.find(name);
  return found == visible_.end() ? nullptr : &found->second;
}

}  // namespace mlcc::loop
