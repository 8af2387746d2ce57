// The names of a kernel's text while it is read: which are visible, block by block, and all that
// were ever defined, since a name has one meaning in a kernel.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "loop/ir.h"
#include "support/lexer.h"

namespace mlcc::loop {

class Names {
 public:
  struct Entry {
    const Variable* variable = nullptr;
    const Buffer* buffer = nullptr;
  };

  void open() { blocks_.emplace_back(); }
  void close();
  // In the innermost block. Error at the token where the name was ever defined before.
  void define(const Token& token, const std::string& name, Entry entry);
  const Entry* find(const std::string& name) const;  // null where no such name is visible

 private:
  std::map<std::string, Entry> visible_;
  std::set<std::string> defined_;
  std::vector<std::vector<std::string>> blocks_;
};

}  // namespace mlcc::loop
