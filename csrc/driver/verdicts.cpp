#include "driver/verdicts.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "driver/session.h"
#include "runtime/store.h"
#include "support/logging.h"

namespace mlcc::driver {
namespace {

constexpr std::string_view kKind = "verdict";

struct Verdicts {
  std::mutex mutex;  // held while one is found: measurements at the same time disturb each other
  std::map<Hash128, std::string> words;
};

// Never destroyed, like the rest of what the process shares.
Verdicts& verdicts() {
  static Verdicts* const state = new Verdicts;
  return *state;
}

}  // namespace

Hash128 verdict_key(const std::string& graph_text, const codegen::Target& target,
                    int64_t num_threads, const Options& options) {
  return FieldHasher()
      .add("verdict")
      .add(graph_text)
      .add(target.str())
      .add(num_threads)
      .add(options.num_threads)
      .add(options.code_fingerprint())
      .finish();
}

std::string verdict_of(const Hash128& key, const Options& options,
                       const std::function<Verdict()>& measure) {
  const std::lock_guard<std::mutex> lock(verdicts().mutex);
  const auto known = verdicts().words.find(key);
  if (known != verdicts().words.end()) return known->second;
  const std::shared_ptr<runtime::Store> disk = store(options);
  const std::optional<std::string> entry = disk ? disk->get(kKind, key) : std::nullopt;
  std::string word;
  if (entry) {
    word = entry->substr(0, entry->find('\n'));
    log(LogChannel::kFusion, "measured before: ", *entry);
  } else {
    const Verdict verdict = measure();
    word = verdict.word;
    log(LogChannel::kFusion, "measured: ", word, "\n", verdict.figures);
    if (disk && verdict.is_lasting) disk->put(kKind, key, word + "\n" + verdict.figures);
  }
  return verdicts().words[key] = word;
}

void forget_verdicts() {
  const std::lock_guard<std::mutex> lock(verdicts().mutex);
  verdicts().words.clear();
}

}  // namespace mlcc::driver
