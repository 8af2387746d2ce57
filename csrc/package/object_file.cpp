#include "package/object_file.h"

#include <elf.h>

#include <array>
#include <cstring>
#include <utility>

#include "package/format.h"
#include "support/error.h"

namespace mlcc::package {
namespace {

// The sections, in the order of their headers.
enum Section : uint16_t {
  kNull,
  kText,
  kRelocations,
  kWeights,
  kStackNote,
  kSymbols,
  kStrings,
  kSectionNames,
  kNumSections
};

uint16_t machine_of(const std::string& architecture) {
  if (architecture == "x86_64") return EM_X86_64;
  if (architecture == "aarch64") return EM_AARCH64;
  throw UnsupportedError(detail::join("object: architecture ", architecture));
}

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// Texts that end with zeros, at the places that ELF knows them by.
class StringTable {
 public:
  uint32_t add(std::string_view text) {
    const auto place = static_cast<uint32_t>(bytes_.size());
    bytes_.append(text);
    bytes_ += '\0';
    return place;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_{'\0'};
};

class Encoder {
 public:
  explicit Encoder(const ObjectFile& file) : file_(file) {}

  std::string encode() {
    Elf64_Ehdr header{};
    out_.append(bytes_of(header));
    add(kText, ".text", SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, kCodeAlignment, file_.code.bytes);
    add(kWeights, ".rodata", SHT_PROGBITS, SHF_ALLOC, kWeightAlignment, file_.weights);
    add(kStackNote, ".note.GNU-stack", SHT_PROGBITS, 0, 1, {});  // the stack holds no code
    const std::string symbols = encode_symbols();
    add(kSymbols, ".symtab", SHT_SYMTAB, 0, alignof(Elf64_Sym), symbols);
    sections_[kSymbols].sh_link = kStrings;
    sections_[kSymbols].sh_info = kFirstGlobal;
    sections_[kSymbols].sh_entsize = sizeof(Elf64_Sym);
    add(kRelocations, ".rela.text", SHT_RELA, SHF_INFO_LINK, alignof(Elf64_Rela),
        encode_relocations());
    sections_[kRelocations].sh_link = kSymbols;
    sections_[kRelocations].sh_info = kText;
    sections_[kRelocations].sh_entsize = sizeof(Elf64_Rela);
    add(kStrings, ".strtab", SHT_STRTAB, 0, 1, names_.bytes());
    add_section_names();
    fill(header);
    std::memcpy(out_.data(), &header, sizeof(header));
    return std::move(out_);
  }

 private:
  static constexpr uint32_t kWeightsSymbol = 1, kFirstGlobal = 2;

  void pad(uint64_t alignment) {
    out_.resize((out_.size() + alignment - 1) / alignment * alignment);
  }

  void add(Section index, std::string_view name, uint32_t type, uint64_t flags, uint64_t alignment,
           std::string_view bytes) {
    pad(alignment);
    Elf64_Shdr& section = sections_[index];
    section.sh_name = section_names_.add(name);
    section.sh_type = type;
    section.sh_flags = flags;
    section.sh_addralign = alignment;
    section.sh_offset = out_.size();
    section.sh_size = bytes.size();
    out_.append(bytes);
  }

  void add_section_names() {
    Elf64_Shdr& section = sections_[kSectionNames];
    section.sh_name = section_names_.add(".shstrtab");
    section.sh_type = SHT_STRTAB;
    section.sh_addralign = 1;
    section.sh_offset = out_.size();
    section.sh_size = section_names_.bytes().size();
    out_.append(section_names_.bytes());
    pad(alignof(Elf64_Shdr));
  }

  std::string encode_symbols() {
    Elf64_Sym none{}, weights{}, function{};
    weights.st_name = names_.add(file_.weights_name);
    weights.st_info = ELF64_ST_INFO(STB_LOCAL, STT_OBJECT);
    weights.st_shndx = kWeights;
    weights.st_size = file_.weights.size();
    function.st_name = names_.add(file_.function);
    function.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    function.st_shndx = kText;
    function.st_value = static_cast<uint64_t>(file_.place);
    function.st_size = file_.code.bytes.size() - static_cast<uint64_t>(file_.place);
    std::string bytes;
    for (const Elf64_Sym& symbol : {none, weights, function}) bytes.append(bytes_of(symbol));
    return bytes;
  }

  std::string encode_relocations() const {
    std::string bytes;
    for (const OpenPlace& place : file_.code.open_places) {
      MLCC_CHECK(place.symbol == file_.weights_name, "object: ", place.symbol, " stays open");
      Elf64_Rela entry{};
      entry.r_offset = static_cast<uint64_t>(place.offset);
      entry.r_info = ELF64_R_INFO(kWeightsSymbol, place.type);
      entry.r_addend = place.addend;
      bytes.append(bytes_of(entry));
    }
    return bytes;
  }

  void fill(Elf64_Ehdr& header) {
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_type = ET_REL;
    header.e_machine = machine_of(file_.architecture);
    header.e_version = EV_CURRENT;
    header.e_ehsize = sizeof(header);
    header.e_shoff = out_.size();
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = kNumSections;
    header.e_shstrndx = kSectionNames;
    for (const Elf64_Shdr& section : sections_) out_.append(bytes_of(section));
  }

  const ObjectFile& file_;
  std::string out_;
  std::array<Elf64_Shdr, kNumSections> sections_{};
  StringTable names_, section_names_;
};

}  // namespace

std::string encode_object(const ObjectFile& file) { return Encoder(file).encode(); }

}  // namespace mlcc::package
