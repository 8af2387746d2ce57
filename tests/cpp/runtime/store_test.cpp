#include "runtime/store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/logging.h"

namespace mlcc::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kLarge = int64_t{1} << 30;

// An empty folder, and the lines that the channel `cache` logs.
class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "mlcc-store-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    folder_ = root_ / "cache";
    set_log_level(LogChannel::kCache, LogLevel::kInfo);
    set_log_sink([this](LogChannel, LogLevel level, std::string_view message) {
      const std::lock_guard lock(mutex_);
      (level == LogLevel::kWarning ? warnings_ : lines_).emplace_back(message);
    });
  }

  void TearDown() override {
    set_log_sink({});
    set_log_level(LogChannel::kCache, LogLevel::kOff);
    fs::permissions(folder_, fs::perms::owner_all, fs::perm_options::replace, ignored_);
    fs::remove_all(root_, ignored_);
  }

  std::string read_file(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  void write_file(const fs::path& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }

  std::vector<fs::path> files() {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder_ / "store"))
      paths.push_back(entry.path());
    return paths;
  }

  fs::path root_, folder_;
  std::mutex mutex_;
  std::vector<std::string> lines_, warnings_;
  std::error_code ignored_;
};

const Hash128 kKey = hash_bytes("a key");
const std::string kPayload = std::string("object\0code", 11) + std::string(300, 'x');

TEST_F(StoreTest, KeepsWhatWasPut) {
  {
    Store store(folder_, kLarge);
    EXPECT_EQ(store.get("kernel", kKey), std::nullopt);
    store.put("kernel", kKey, kPayload);
    EXPECT_EQ(store.get("kernel", kKey), kPayload);
    EXPECT_EQ(store.get("graph", kKey), std::nullopt);
    EXPECT_EQ(store.get("kernel", hash_bytes("another key")), std::nullopt);
  }
  Store later(folder_, kLarge);
  EXPECT_EQ(later.get("kernel", kKey), kPayload);
  const StoreInfo info = later.info();
  EXPECT_TRUE(info.open);
  EXPECT_EQ(info.entries, 1);
  EXPECT_EQ(info.hits, 1);
  EXPECT_GT(info.bytes, static_cast<int64_t>(kPayload.size()));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(StoreTest, EmptyPayloadsAndOverwriting) {
  Store store(folder_, kLarge);
  store.put("kernel", kKey, "");
  EXPECT_EQ(store.get("kernel", kKey), "");
  store.put("kernel", kKey, kPayload);
  EXPECT_EQ(store.get("kernel", kKey), kPayload);
  EXPECT_EQ(store.info().entries, 1);
}

TEST_F(StoreTest, MakesItsFolderForTheUserAlone) {
  Store store(folder_, kLarge);
  store.put("kernel", kKey, kPayload);
  EXPECT_EQ(fs::status(folder_).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(folder_ / "store").permissions(), fs::perms::owner_all);
  ASSERT_EQ(files().size(), 1u);
  EXPECT_EQ(fs::status(files()[0]).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(StoreTest, ReadingMakesNoFolder) {
  Store store(folder_, kLarge);
  EXPECT_EQ(store.get("kernel", kKey), std::nullopt);
  EXPECT_EQ(store.info().entries, 0);
  store.clear();
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(StoreTest, SizeZeroIsOff) {
  Store store(folder_, 0);
  store.put("kernel", kKey, kPayload);
  EXPECT_EQ(store.get("kernel", kKey), std::nullopt);
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(StoreTest, TruncationAtEveryByteIsALoggedMiss) {
  const std::string file = encode_store_file("kernel", kKey, "payload");
  std::string reason;
  ASSERT_EQ(decode_store_file("kernel", kKey, file, &reason), "payload");
  for (size_t size = 0; size < file.size(); ++size) {
    reason.clear();
    EXPECT_EQ(decode_store_file("kernel", kKey, file.substr(0, size), &reason), std::nullopt)
        << size;
    EXPECT_NE(reason, "") << size;
  }
  EXPECT_EQ(decode_store_file("kernel", kKey, file + "x", &reason), std::nullopt);
}

TEST_F(StoreTest, EveryFlippedBitIsFound) {
  const std::string file = encode_store_file("kernel", kKey, "payload");
  for (size_t byte = 0; byte < file.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = file;
      bad[byte] = static_cast<char>(bad[byte] ^ (1 << bit));
      std::string reason;
      EXPECT_EQ(decode_store_file("kernel", kKey, bad, &reason), std::nullopt)
          << byte << "." << bit;
    }
  }
}

TEST_F(StoreTest, HugeSizesInTheHeaderAreRefused) {
  std::string file = encode_store_file("kernel", kKey, "payload");
  for (size_t offset : {size_t{12}, size_t{16}}) {
    for (const char* bytes :
         {"\xff\xff\xff\xff\xff\xff\xff\xff", "\xff\xff\xff\x7f\xff\xff\xff\x7f"}) {
      std::string bad = file;
      bad.replace(offset, offset == 12 ? 4 : 8, std::string(bytes, offset == 12 ? 4 : 8));
      std::string reason;
      EXPECT_EQ(decode_store_file("kernel", kKey, bad, &reason), std::nullopt);
      EXPECT_EQ(reason, "sizes do not add up");
    }
  }
}

TEST_F(StoreTest, ABadFileIsDroppedAndTellsWhy) {
  Store store(folder_, kLarge);
  store.put("kernel", kKey, kPayload);
  const fs::path path = files()[0];
  const std::string good = read_file(path);

  std::string bad = good;
  bad.back() ^= 1;
  for (const std::string& content :
       {bad, good.substr(0, good.size() / 2), std::string("garbage"), std::string()}) {
    write_file(path, content);
    lines_.clear();
    EXPECT_EQ(store.get("kernel", kKey), std::nullopt);
    EXPECT_THAT(lines_, ElementsAre(HasSubstr("is dropped")));
    EXPECT_FALSE(fs::exists(path));
  }
  store.put("kernel", kKey, kPayload);
  EXPECT_EQ(store.get("kernel", kKey), kPayload);
}

TEST_F(StoreTest, AFileOfAnotherKeyIsNotTaken) {
  Store store(folder_, kLarge);
  store.put("kernel", kKey, kPayload);
  const Hash128 other = hash_bytes("other");
  fs::copy(files()[0], folder_ / "store" / ("kernel-" + other.hex()));
  EXPECT_EQ(store.get("kernel", other), std::nullopt);
  EXPECT_EQ(store.get("kernel", kKey), kPayload);
}

TEST_F(StoreTest, LinksAndFoldersInPlaceOfEntriesAreNotFollowed) {
  Store store(folder_, kLarge);
  store.put("kernel", kKey, kPayload);
  const Hash128 link = hash_bytes("link");
  const Hash128 directory = hash_bytes("directory");
  fs::create_symlink(files()[0], folder_ / "store" / ("kernel-" + link.hex()));
  fs::create_directory(folder_ / "store" / ("kernel-" + directory.hex()));
  EXPECT_EQ(store.get("kernel", link), std::nullopt);
  EXPECT_EQ(store.get("kernel", directory), std::nullopt);
}

TEST_F(StoreTest, AProcessWithoutFreeDescriptorsKeepsEntries) {
  Store store(folder_, kLarge);
  store.put("kernel", kKey, kPayload);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::optional<std::string> found = store.get("kernel", kKey);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(found, std::nullopt);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("is not read")));
  EXPECT_EQ(store.get("kernel", kKey), kPayload);
}

TEST_F(StoreTest, AFolderThatOthersMayWriteIsRefusedOnce) {
  fs::create_directory(folder_);
  for (const fs::perms perms : {fs::perms::group_write, fs::perms::others_write}) {
    warnings_.clear();
    fs::permissions(folder_, fs::perms::owner_all | perms, fs::perm_options::replace);
    Store store(folder_, kLarge);
    store.put("kernel", kKey, kPayload);
    EXPECT_EQ(store.get("kernel", kKey), std::nullopt);
    EXPECT_FALSE(store.info().open);
    EXPECT_THAT(warnings_,
                ElementsAre(HasSubstr("is not used: others than its owner may write into it")));
    EXPECT_FALSE(fs::exists(folder_ / "store"));
  }
}

TEST_F(StoreTest, AnInnerFolderThatOthersMayWriteIsRefused) {
  fs::create_directories(folder_ / "store");
  fs::permissions(folder_, fs::perms::owner_all, fs::perm_options::replace);
  fs::permissions(folder_ / "store", fs::perms::all, fs::perm_options::replace);
  Store store(folder_, kLarge);
  store.put("kernel", kKey, kPayload);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("is not used")));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(StoreTest, AFolderOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  fs::create_directory(folder_);
  fs::permissions(folder_, fs::perms::owner_all, fs::perm_options::replace);
  ASSERT_EQ(::chown(folder_.c_str(), 12345, 12345), 0);
  Store store(folder_, kLarge);
  store.put("kernel", kKey, kPayload);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("it belongs to user 12345")));
}

TEST_F(StoreTest, AFileInPlaceOfTheFolderIsAWarning) {
  write_file(folder_, "no folder");
  Store store(folder_, kLarge);
  store.put("kernel", kKey, kPayload);
  EXPECT_EQ(store.get("kernel", kKey), std::nullopt);
  EXPECT_EQ(warnings_.size(), 1u);
}

TEST_F(StoreTest, RecoversWhenTheFolderIsDeleted) {
  Store store(folder_, kLarge);
  store.put("kernel", kKey, kPayload);
  fs::remove_all(folder_);
  EXPECT_EQ(store.get("kernel", kKey), std::nullopt);
  store.put("kernel", kKey, kPayload);
  EXPECT_EQ(store.get("kernel", kKey), kPayload);
}

TEST_F(StoreTest, LeastRecentlyUsedEntriesGoFirst) {
  const std::string payload(1000, 'p');
  const auto key = [](int i) { return hash_bytes("entry " + std::to_string(i)); };
  Store store(folder_, 10'000);
  for (int i = 0; i < 8; ++i) store.put("kernel", key(i), payload);
  const auto now = fs::file_time_type::clock::now();
  for (int i = 0; i < 8; ++i)
    fs::last_write_time(folder_ / "store" / ("kernel-" + key(i).hex()),
                        now - std::chrono::seconds(100 - i));
  EXPECT_EQ(store.get("kernel", key(0)), payload);  // the oldest becomes the newest
  store.put("kernel", key(8), payload);
  store.put("kernel", key(9), payload);
  EXPECT_LE(store.info().bytes, 10'000);
  EXPECT_EQ(store.get("kernel", key(0)), payload);
  EXPECT_EQ(store.get("kernel", key(9)), payload);
  EXPECT_EQ(store.get("kernel", key(1)), std::nullopt);
}

TEST_F(StoreTest, AnEntryAboveTheCapIsNotWritten) {
  Store store(folder_, 100);
  store.put("kernel", kKey, kPayload);
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(StoreTest, LeftoversOfDeadWritersAreSwept) {
  Store store(folder_, 10'000);
  store.put("kernel", kKey, "x");
  const fs::path old_file = folder_ / "store" / "tmp-1-0";
  const fs::path new_file = folder_ / "store" / "tmp-1-1";
  write_file(old_file, "half");
  write_file(new_file, "half");
  fs::last_write_time(old_file, fs::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_EQ(store.info().entries, 1);
  for (int i = 0; i < 20; ++i)
    store.put("kernel", hash_bytes(std::to_string(i)), std::string(1000, 'p'));
  EXPECT_FALSE(fs::exists(old_file));
  EXPECT_TRUE(fs::exists(new_file));
}

TEST_F(StoreTest, ClearDeletesAllEntries) {
  Store store(folder_, kLarge);
  store.put("kernel", kKey, kPayload);
  write_file(folder_ / "not ours", "stays");
  store.clear();
  EXPECT_EQ(store.get("kernel", kKey), std::nullopt);
  EXPECT_EQ(store.info().entries, 0);
  EXPECT_TRUE(fs::exists(folder_ / "not ours"));
}

std::string payload_of(int i) {
  return std::string(static_cast<size_t>(2000 + 37 * i), static_cast<char>('a' + i % 26));
}

// Writes and reads a few keys; false if something else than a whole payload was read.
bool work_on(const fs::path& folder, int rounds) {
  Store store(folder, kLarge);
  for (int i = 0; i < rounds; ++i) {
    const Hash128 key = hash_bytes(std::to_string(i % 5));
    if (const auto payload = store.get("kernel", key); payload && *payload != payload_of(i % 5))
      return false;
    store.put("kernel", key, payload_of(i % 5));
  }
  return true;
}

TEST_F(StoreTest, ConcurrentThreadsSeeWholeEntries) {
  Store shared(folder_, kLarge);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        const Hash128 key = hash_bytes(std::to_string(i % 5));
        const auto payload = shared.get("kernel", key);
        if (payload) {
          EXPECT_EQ(*payload, payload_of(i % 5));
        }
        shared.put("kernel", key, payload_of(i % 5));
      }
    });
    threads.emplace_back([&] { EXPECT_TRUE(work_on(folder_, 100)); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(lines_, IsEmpty());
  EXPECT_EQ(shared.info().entries, 5);
}

TEST_F(StoreTest, ConcurrentProcessesSeeWholeEntries) {
  std::vector<pid_t> children;
  for (int c = 0; c < 3; ++c) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(work_on(folder_, 200) ? 0 : 1);
    children.push_back(child);
  }
  EXPECT_TRUE(work_on(folder_, 200));
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(Store(folder_, kLarge).info().entries, 5);
  for (const fs::path& path : files()) EXPECT_THAT(path.filename().string(), HasSubstr("kernel-"));
}

}  // namespace
}  // namespace mlcc::runtime
