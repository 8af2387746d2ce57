#include "codegen/cpu/jit.h"

#include <llvm/ExecutionEngine/Orc/Core.h>
#include <llvm/ExecutionEngine/Orc/DebugObjectManagerPlugin.h>
#include <llvm/ExecutionEngine/Orc/EPCDebugObjectRegistrar.h>
#include <llvm/ExecutionEngine/Orc/ExecutorProcessControl.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/ExecutionEngine/Orc/TargetProcess/JITLoaderGDB.h>
#include <llvm/Object/ELFObjectFile.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/TargetParser/Host.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "support/error.h"

// Defined by LLVM, found by gdb under these names ("JIT Compilation Interface" in gdb's manual).
extern "C" jit_descriptor __jit_debug_descriptor;
extern "C" void __jit_debug_register_code();

namespace mlcc::codegen::cpu {
namespace {

namespace orc = llvm::orc;

template <typename T>
T value_or_throw(llvm::Expected<T> expected, std::string_view what) {
  if (!expected) throw Error(detail::join(what, ": ", llvm::toString(expected.takeError())));
  return std::move(*expected);
}

void throw_if(llvm::Error error, std::string_view what) {
  if (error) throw Error(detail::join(what, ": ", llvm::toString(std::move(error))));
}

// An object in gdb's list while this lives. LLVM's own registrar never takes an object out again,
// and so leaves gdb with addresses that are unmapped with the code.
class Announcement {
 public:
  explicit Announcement(const orc::ExecutorAddrRange& memory)
      : entry_{nullptr, nullptr, memory.Start.toPtr<const char*>(), memory.size()} {
    const std::lock_guard lock(mutex());
    entry_.next_entry = __jit_debug_descriptor.first_entry;
    if (entry_.next_entry) entry_.next_entry->prev_entry = &entry_;
    __jit_debug_descriptor.first_entry = &entry_;
    tell(JIT_REGISTER_FN);
  }
  ~Announcement() {
    const std::lock_guard lock(mutex());
    if (entry_.next_entry) entry_.next_entry->prev_entry = entry_.prev_entry;
    (entry_.prev_entry ? entry_.prev_entry->next_entry : __jit_debug_descriptor.first_entry) =
        entry_.next_entry;
    tell(JIT_UNREGISTER_FN);
  }
  Announcement(const Announcement&) = delete;
  Announcement& operator=(const Announcement&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex* const instance = new std::mutex;  // kernels may outlive static objects
    return *instance;
  }
  void tell(jit_actions_t action) {
    __jit_debug_descriptor.relevant_entry = &entry_;
    __jit_debug_descriptor.action_flag = action;
    __jit_debug_register_code();
    __jit_debug_descriptor.relevant_entry = nullptr;
    __jit_debug_descriptor.action_flag = JIT_NOACTION;
  }

  jit_code_entry entry_;
};

// Where the object that this thread links has its debug information; linking stays in the thread.
thread_local orc::ExecutorAddrRange linked_debug_object;

class Registrar : public orc::DebugObjectRegistrar {
  llvm::Error registerDebugObject(orc::ExecutorAddrRange memory, bool) override {
    linked_debug_object = memory;
    return llvm::Error::success();
  }
};

// JITLink links objects of other machines too.
void check_machine(std::string_view object) {
  const auto file = value_or_throw(
      llvm::object::ObjectFile::createELFObjectFile({{object.data(), object.size()}, "object"}),
      "bad object code");
  const llvm::Triple::ArchType host = llvm::Triple(llvm::sys::getProcessTriple()).getArch();
  if (file->getArch() != host)
    throw Error(detail::join("object code for ",
                             llvm::Triple::getArchTypeName(file->getArch()).str(),
                             " does not run on this ", llvm::Triple::getArchTypeName(host).str()));
}

// A linked object's place in the session, and in gdb's list.
struct Link {
  orc::JITDylib* dylib = nullptr;
  std::unique_ptr<Announcement> announcement = nullptr;
};

// ORC's session with JITLink alone: objects are complete and need no unwind tables, no process
// symbols and no platform, hence none of what LLJIT adds.
class Linker {
 public:
  Linker()
      : session_(value_or_throw(orc::SelfExecutorProcessControl::Create(
                                    nullptr, std::make_unique<orc::InPlaceTaskDispatcher>()),
                                "the linker cannot start")),
        layer_(session_) {
    layer_.addPlugin(std::make_shared<orc::DebugObjectManagerPlugin>(
        session_, std::make_unique<Registrar>(), /*RequireDebugSections=*/false,
        /*AutoRegisterCode=*/true));
    session_.setErrorReporter([](llvm::Error error) { llvm::consumeError(std::move(error)); });
  }

  Link link(std::string_view object, const std::vector<std::string>& symbols,
            std::vector<void*>& addresses) {
    check_machine(object);
    const std::string name = "object." + std::to_string(next_.fetch_add(1));
    Link link{&session_.createBareJITDylib(name)};
    linked_debug_object = {};
    try {
      auto bytes = llvm::MemoryBuffer::getMemBufferCopy({object.data(), object.size()}, name);
      throw_if(layer_.add(*link.dylib, std::move(bytes)), "bad object code");
      look_up(*link.dylib, symbols, addresses);
    } catch (const Error&) {
      unlink(link);
      throw;
    }
    if (!linked_debug_object.empty())
      link.announcement = std::make_unique<Announcement>(linked_debug_object);
    return link;
  }

  void unlink(Link& link) {
    link.announcement.reset();
    llvm::consumeError(session_.removeJITDylib(*link.dylib));
  }

 private:
  void look_up(orc::JITDylib& dylib, const std::vector<std::string>& symbols,
               std::vector<void*>& addresses) {
    orc::SymbolLookupSet wanted;
    for (const std::string& symbol : symbols) wanted.add(session_.intern(symbol));
    const auto found = value_or_throw(
        session_.lookup({{&dylib, orc::JITDylibLookupFlags::MatchAllSymbols}}, std::move(wanted)),
        "the object cannot be linked");
    for (const std::string& symbol : symbols)
      addresses.push_back(found.lookup(session_.intern(symbol)).getAddress().toPtr<void*>());
  }

  orc::ExecutionSession session_;
  orc::ObjectLinkingLayer layer_;
  std::atomic<uint64_t> next_{0};
};

// Started at the first load. Never destroyed: kernels may outlive every static object.
Linker& linker() {
  static Linker* const instance = new Linker();
  return *instance;
}

class LinkedObject : public LoadedObject {
 public:
  LinkedObject(std::string_view object, const std::vector<std::string>& symbols)
      : link_(linker().link(object, symbols, addresses_)) {}
  ~LinkedObject() override { linker().unlink(link_); }
  LinkedObject(const LinkedObject&) = delete;
  LinkedObject& operator=(const LinkedObject&) = delete;

  const std::vector<void*>& addresses() const override { return addresses_; }

 private:
  std::vector<void*> addresses_;
  Link link_;
};

}  // namespace

std::unique_ptr<LoadedObject> load_object(std::string_view object,
                                          const std::vector<std::string>& symbols) {
  return std::make_unique<LinkedObject>(object, symbols);
}

}  // namespace mlcc::codegen::cpu
