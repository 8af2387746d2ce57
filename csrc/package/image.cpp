#include "package/image.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "runtime/object_loader.h"
#include "support/bytes.h"
#include "support/error.h"

namespace mlcc::package {
namespace {

constexpr int64_t kPage = 4096;  // that AArch64's ADRP counts in

// A relocatable object of ELF: its parts, with every access inside of the bytes.
class Object {
 public:
  explicit Object(std::string_view bytes) : bytes_(bytes), header_(read<Elf64_Ehdr>(0)) {
    const bool is_elf = std::memcmp(header_.e_ident, ELFMAG, SELFMAG) == 0 &&
                        header_.e_ident[EI_CLASS] == ELFCLASS64 && header_.e_type == ET_REL;
    MLCC_USER_CHECK(is_elf, "object: no relocatable ELF file of 64 bits");
    for (size_t i = 0; i < header_.e_shnum; ++i)
      sections_.push_back(read<Elf64_Shdr>(header_.e_shoff + i * sizeof(Elf64_Shdr)));
  }

  int machine() const { return header_.e_machine; }
  const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  const Elf64_Shdr& section(size_t index) const {
    MLCC_USER_CHECK(index < sections_.size(), "object: no section ", index);
    return sections_[index];
  }

  std::string_view contents(const Elf64_Shdr& section) const {
    MLCC_USER_CHECK(section.sh_offset <= bytes_.size() &&
                        section.sh_size <= bytes_.size() - section.sh_offset,
                    "object: a section lies outside of the file");
    return bytes_.substr(section.sh_offset, section.sh_size);
  }

  // The entries of a table.
  template <typename Entry>
  std::vector<Entry> table(const Elf64_Shdr& section) const {
    (void)contents(section);
    std::vector<Entry> entries;
    for (size_t at = 0; at + sizeof(Entry) <= section.sh_size; at += sizeof(Entry))
      entries.push_back(read<Entry>(section.sh_offset + at));
    return entries;
  }

  std::string_view name(const Elf64_Shdr& strings, size_t at) const {
    const std::string_view all = contents(strings);
    MLCC_USER_CHECK(at < all.size(), "object: a name lies outside of its table");
    return all.substr(at, all.find('\0', at) - at);
  }

  std::string_view section_name(const Elf64_Shdr& one) const {
    return name(section(header_.e_shstrndx), one.sh_name);
  }

 private:
  template <typename T>
  T read(size_t at) const {
    MLCC_USER_CHECK(at <= bytes_.size() && sizeof(T) <= bytes_.size() - at,
                    "object: the file ends early");
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof(T));
    return value;
  }

  const std::string_view bytes_;
  const Elf64_Ehdr header_;
  std::vector<Elf64_Shdr> sections_;
};

// Puts one object behind what is there.
class ObjectLinker {
 public:
  ObjectLinker(std::string_view bytes, std::string& image, const Outside& outside)
      : object_(bytes), image_(image), outside_(outside) {}

  const std::map<std::string, int64_t, std::less<>>& link(std::vector<OpenPlace>& open) {
    place_sections();
    read_symbols();
    for (const Elf64_Shdr& section : object_.sections())
      if (section.sh_type == SHT_RELA) relocate(section, open);
    return defined_;
  }

  // Of the deepest call: a function that others see, and all of those that it may call.
  int64_t stack_bytes() const {
    int64_t most = 0, inner = 0;
    for (size_t i = 0; i < object_.sections().size(); ++i) {
      if (object_.section_name(object_.section(i)) != ".stack_sizes") continue;
      for (const auto& [function, bytes] : frames(i)) {
        const bool is_outer =
            std::any_of(defined_.begin(), defined_.end(),
                        [&](const auto& symbol) { return symbol.second == function; });
        if (is_outer)
          most = std::max(most, bytes);
        else
          inner += bytes;
      }
    }
    return most + inner;
  }

 private:
  // Functions with the bytes of their frames: addresses, which relocations tell, each with a number
  // of seven bits a byte.
  std::vector<std::pair<int64_t, int64_t>> frames(size_t index) const {
    std::map<uint64_t, int64_t> functions;  // by the place of the address in the section
    for (const Elf64_Shdr& table : object_.sections()) {
      if (table.sh_type != SHT_RELA || table.sh_info != index) continue;
      for (const Elf64_Rela& entry : object_.table<Elf64_Rela>(table)) {
        const size_t symbol = ELF64_R_SYM(entry.r_info);
        MLCC_USER_CHECK(symbol < symbols_.size() && symbols_[symbol].second,
                        "object: the frame of no function");
        functions[entry.r_offset] = *symbols_[symbol].second + entry.r_addend;
      }
    }
    const std::string_view bytes = object_.contents(object_.section(index));
    std::vector<std::pair<int64_t, int64_t>> found;
    for (size_t at = 0; at < bytes.size();) {
      const auto function = functions.find(at);
      MLCC_USER_CHECK(function != functions.end(), "object: the frame of no function");
      ByteReader number(bytes.substr(std::min(at + sizeof(uint64_t), bytes.size())), "object");
      found.emplace_back(function->second, static_cast<int64_t>(number.count()));
      at = bytes.size() - number.rest().size();
    }
    return found;
  }

  static bool is_loaded(const Elf64_Shdr& section) { return (section.sh_flags & SHF_ALLOC) != 0; }

  // Tables for debuggers and for unwinding, which nobody asks of kernels.
  static bool is_dropped(std::string_view name) {
    return name.starts_with(".eh_frame") || name.starts_with(".debug");
  }

  void place_sections() {
    places_.resize(object_.sections().size());
    for (size_t i = 0; i < object_.sections().size(); ++i) {
      const Elf64_Shdr& section = object_.sections()[i];
      if (!is_loaded(section) || is_dropped(object_.section_name(section))) continue;
      if (section.sh_size == 0) {
        places_[i] = static_cast<int64_t>(image_.size());
        continue;
      }
      if (section.sh_type != SHT_PROGBITS || (section.sh_flags & SHF_WRITE) != 0)
        throw UnsupportedError(detail::join("object: section ", object_.section_name(section),
                                            " is neither code nor constants"));
      MLCC_USER_CHECK(section.sh_addralign <= kImageAlignment, "object: section ",
                      object_.section_name(section), " is aligned to ", section.sh_addralign);
      const size_t alignment = std::max<size_t>(1, section.sh_addralign);
      image_.resize((image_.size() + alignment - 1) / alignment * alignment);
      places_[i] = static_cast<int64_t>(image_.size());
      image_ += object_.contents(section);
    }
  }

  void read_symbols() {
    for (const Elf64_Shdr& section : object_.sections()) {
      if (section.sh_type != SHT_SYMTAB) continue;
      const Elf64_Shdr& strings = object_.section(section.sh_link);
      for (const Elf64_Sym& symbol : object_.table<Elf64_Sym>(section)) {
        const std::string name(object_.name(strings, symbol.st_name));
        std::optional<int64_t> place;
        if (symbol.st_shndx < places_.size() && places_[symbol.st_shndx])
          place = *places_[symbol.st_shndx] + static_cast<int64_t>(symbol.st_value);
        symbols_.emplace_back(name, place);
        if (place && ELF64_ST_BIND(symbol.st_info) == STB_GLOBAL) defined_[name] = *place;
      }
    }
  }

  void relocate(const Elf64_Shdr& table, std::vector<OpenPlace>& open) {
    if (table.sh_info >= places_.size() || !places_[table.sh_info]) return;
    const auto size = static_cast<int64_t>(object_.section(table.sh_info).sh_size);
    for (const Elf64_Rela& entry : object_.table<Elf64_Rela>(table)) {
      const size_t index = ELF64_R_SYM(entry.r_info);
      MLCC_USER_CHECK(index < symbols_.size(), "object: no symbol ", index);
      const auto& [name, target] = symbols_[index];
      const auto offset = static_cast<int64_t>(entry.r_offset);
      MLCC_USER_CHECK(offset >= 0 && offset <= size - 4, "object: a relocation outside of ",
                      "its section");
      const auto type = static_cast<uint32_t>(ELF64_R_TYPE(entry.r_info));
      const int64_t at = *places_[table.sh_info] + offset;
      const auto known = outside_.known.find(name);
      if (target)
        apply(type, at, *target + entry.r_addend);
      else if (known != outside_.known.end())
        apply(type, at, known->second + entry.r_addend);
      else if (outside_.open.contains(name))
        open.push_back({at, type, name, entry.r_addend});
      else
        throw UnsupportedError(detail::join("object: needs ", name, " of a library"));
    }
  }

  void apply(uint32_t type, int64_t at, int64_t target) {
    if (object_.machine() == EM_X86_64)
      apply_x86(type, at, target);
    else if (object_.machine() == EM_AARCH64)
      apply_arm(type, at, target);
    else
      throw UnsupportedError(detail::join("object: code for machine ", object_.machine()));
  }

  void apply_x86(uint32_t type, int64_t at, int64_t target) {
    if (type != R_X86_64_PC32 && type != R_X86_64_PLT32) refuse(type);
    write(at, static_cast<uint32_t>(in_range(target - at, 31)));
  }

  // The fields that instructions have for addresses (ELF for the Arm 64-bit Architecture, 5.7).
  void apply_arm(uint32_t type, int64_t at, int64_t target) {
    switch (type) {
    case R_AARCH64_PREL32: write(at, static_cast<uint32_t>(in_range(target - at, 31))); return;
    case R_AARCH64_CALL26:
    case R_AARCH64_JUMP26:
      fill(at, static_cast<uint64_t>(in_range(target - at, 27)) >> 2, 26, 0);
      return;
    case R_AARCH64_ADR_PREL_PG_HI21: {
      const int64_t pages = in_range((target & -kPage) - (at & -kPage), 32) / kPage;
      fill(at, static_cast<uint64_t>(pages), 2, 29);
      fill(at, static_cast<uint64_t>(pages) >> 2, 19, 5);
      return;
    }
    case R_AARCH64_ADD_ABS_LO12_NC: fill_low(at, target, 0); return;
    case R_AARCH64_LDST8_ABS_LO12_NC: fill_low(at, target, 0); return;
    case R_AARCH64_LDST16_ABS_LO12_NC: fill_low(at, target, 1); return;
    case R_AARCH64_LDST32_ABS_LO12_NC: fill_low(at, target, 2); return;
    case R_AARCH64_LDST64_ABS_LO12_NC: fill_low(at, target, 3); return;
    case R_AARCH64_LDST128_ABS_LO12_NC: fill_low(at, target, 4); return;
    default: refuse(type);
    }
  }

  // Bits of an address inside of its page, in units of what is loaded.
  void fill_low(int64_t at, int64_t target, int shift) {
    fill(at, static_cast<uint64_t>(target & (kPage - 1)) >> shift, 12 - shift, 10);
  }

  void fill(int64_t at, uint64_t value, int bits, int first) {
    const uint32_t mask = ((uint32_t{1} << bits) - 1) << first;
    uint32_t instruction = 0;
    std::memcpy(&instruction, image_.data() + at, sizeof(instruction));
    write(at, (instruction & ~mask) | ((static_cast<uint32_t>(value) << first) & mask));
  }

  void write(int64_t at, uint32_t value) { std::memcpy(image_.data() + at, &value, sizeof(value)); }

  static int64_t in_range(int64_t value, int bits) {
    const int64_t most = int64_t{1} << bits;
    MLCC_USER_CHECK(value >= -most && value < most, "object: code is too far from what it needs");
    return value;
  }

  [[noreturn]] static void refuse(uint32_t type) {
    throw UnsupportedError(detail::join("object: relocation of type ", type));
  }

  const Object object_;
  std::string& image_;
  const Outside& outside_;
  std::vector<std::optional<int64_t>> places_;  // of sections in the image
  std::vector<std::pair<std::string, std::optional<int64_t>>> symbols_;
  std::map<std::string, int64_t, std::less<>> defined_;
};

// Where what it defines lies.
std::map<std::string, int64_t, std::less<>> place(std::string_view object, const Outside& outside,
                                                  Image& image) {
  const size_t begin = (image.bytes.size() + kImageAlignment - 1) / kImageAlignment;
  image.bytes.resize(begin * kImageAlignment);
  ObjectLinker linker(object, image.bytes, outside);
  std::map<std::string, int64_t, std::less<>> defined = linker.link(image.open_places);
  image.stack_bytes = std::max(image.stack_bytes, linker.stack_bytes());
  if (const auto scratch = defined.find(runtime::scratch_symbol("k")); scratch != defined.end()) {
    int64_t bytes = 0;
    std::memcpy(&bytes, image.bytes.data() + scratch->second, sizeof(bytes));
    image.scratch_bytes = std::max(image.scratch_bytes, bytes);
  }
  return defined;
}

std::vector<int64_t> addresses_of(const ObjectToLink& object,
                                  const std::map<std::string, int64_t, std::less<>>& defined) {
  std::vector<int64_t> addresses;
  for (const std::string& symbol : object.symbols) {
    const auto place = defined.find(symbol);
    MLCC_USER_CHECK(place != defined.end(), "object: does not define ", symbol);
    addresses.push_back(place->second);
  }
  return addresses;
}

}  // namespace

Image link_objects(std::span<const ObjectToLink> objects) {
  Image image;
  std::map<std::string_view, std::map<std::string, int64_t, std::less<>>> linked;
  for (const ObjectToLink& object : objects) {
    const auto [found, is_new] = linked.try_emplace(object.bytes);
    if (is_new) found->second = place(object.bytes, {}, image);
    image.addresses.push_back(addresses_of(object, found->second));
  }
  return image;
}

void link_behind(Image& image, const ObjectToLink& object, const Outside& outside) {
  image.addresses.push_back(addresses_of(object, place(object.bytes, outside, image)));
}

}  // namespace mlcc::package
