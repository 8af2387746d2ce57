#include "codegen/cpu/jit.h"

#include <llvm/ExecutionEngine/Orc/Core.h>
#include <llvm/ExecutionEngine/Orc/DebugObjectManagerPlugin.h>
#include <llvm/ExecutionEngine/Orc/EPCDebugObjectRegistrar.h>
#include <llvm/ExecutionEngine/Orc/ExecutorProcessControl.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/ExecutionEngine/Orc/TargetProcess/JITLoaderGDB.h>
#include <llvm/Support/MemoryBuffer.h>

#include <atomic>

#include "support/error.h"

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

// ORC's session with JITLink alone: objects are complete and need no unwind tables, no process
// symbols and no platform, hence none of what LLJIT adds.
class Linker {
 public:
  Linker()
      : session_(value_or_throw(orc::SelfExecutorProcessControl::Create(
                                    nullptr, std::make_unique<orc::InPlaceTaskDispatcher>()),
                                "the linker cannot start")),
        layer_(session_) {
    // By address and not by name: our symbols are hidden, a look-up in the process finds nothing.
    auto registrar = std::make_unique<orc::EPCDebugObjectRegistrar>(
        session_, orc::ExecutorAddr::fromPtr(&llvm_orc_registerJITLoaderGDBWrapper));
    layer_.addPlugin(std::make_shared<orc::DebugObjectManagerPlugin>(session_, std::move(registrar),
                                                                     /*RequireDebugSections=*/false,
                                                                     /*AutoRegisterCode=*/true));
    session_.setErrorReporter([](llvm::Error error) { llvm::consumeError(std::move(error)); });
  }

  orc::JITDylib& link(std::string_view object, const std::vector<std::string>& symbols,
                      std::vector<void*>& addresses) {
    const std::string name = "object." + std::to_string(next_.fetch_add(1));
    orc::JITDylib& dylib = session_.createBareJITDylib(name);
    try {
      auto bytes = llvm::MemoryBuffer::getMemBufferCopy({object.data(), object.size()}, name);
      throw_if(layer_.add(dylib, std::move(bytes)), "bad object code");
      look_up(dylib, symbols, addresses);
    } catch (const Error&) {
      unlink(dylib);
      throw;
    }
    return dylib;
  }

  void unlink(orc::JITDylib& dylib) { llvm::consumeError(session_.removeJITDylib(dylib)); }

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
      : dylib_(linker().link(object, symbols, addresses_)) {}
  ~LinkedObject() override { linker().unlink(dylib_); }
  LinkedObject(const LinkedObject&) = delete;
  LinkedObject& operator=(const LinkedObject&) = delete;

  const std::vector<void*>& addresses() const override { return addresses_; }

 private:
  std::vector<void*> addresses_;
  orc::JITDylib& dylib_;
};

}  // namespace

std::unique_ptr<LoadedObject> load_object(std::string_view object,
                                          const std::vector<std::string>& symbols) {
  return std::make_unique<LinkedObject>(object, symbols);
}

}  // namespace mlcc::codegen::cpu
