// The processor features that a program needs: those that -march=native added where it was compiled, by the
// names of the compiler's macros (__AVX2__: AVX2). The program lists them; the runtime asks the processor.
#ifndef COCKTAIL_RUNTIME_FEATURES_H
#define COCKTAIL_RUNTIME_FEATURES_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace {

// Where a program was compiled. Features that the table below lacks are present on the same processor only.
enum Origin { kBuiltHere, kBuiltAnywhere };

#if defined(__x86_64__)
// A register of CPUID with features. kNever: of instructions that compilers use only by name.
enum Register { kNever, k1C, k7B, k7C, k7D, k71A, k71D, kExtC, kRegisters };
// The registers that the operating system must save, as bits of XCR0.
enum Saved : uint32_t { kNone = 0, kAvx = 6, kAvx512 = 0xe6, kAmx = 0x60000, kApx = 0x80000 };

struct Feature {
  const char* name;
  Register source;
  int bit;
  Saved saved;
};

const Feature kFeatures[] = {
    // Leaf 1.
    {"SSE3", k1C, 0, kNone},
    {"PCLMUL", k1C, 1, kNone},
    {"SSSE3", k1C, 9, kNone},
    {"FMA", k1C, 12, kAvx},
    {"SSE4_1", k1C, 19, kNone},
    {"SSE4_2", k1C, 20, kNone},
    {"CRC32", k1C, 20, kNone},
    {"MOVBE", k1C, 22, kNone},
    {"POPCNT", k1C, 23, kNone},
    {"AES", k1C, 25, kNone},
    {"AVX", k1C, 28, kAvx},
    {"F16C", k1C, 29, kAvx},
    // Leaf 7.
    {"BMI", k7B, 3, kNone},
    {"AVX2", k7B, 5, kAvx},
    {"BMI2", k7B, 8, kNone},
    {"AVX512F", k7B, 16, kAvx512},
    {"EVEX256", k7B, 16, kAvx512},
    {"EVEX512", k7B, 16, kAvx512},
    {"AVX512DQ", k7B, 17, kAvx512},
    {"ADX", k7B, 19, kNone},
    {"AVX512IFMA", k7B, 21, kAvx512},
    {"AVX512PF", k7B, 26, kAvx512},
    {"AVX512ER", k7B, 27, kAvx512},
    {"AVX512CD", k7B, 28, kAvx512},
    {"SHA", k7B, 29, kNone},
    {"AVX512BW", k7B, 30, kAvx512},
    {"AVX512VL", k7B, 31, kAvx512},
    {"AVX512VBMI", k7C, 1, kAvx512},
    {"AVX512VBMI2", k7C, 6, kAvx512},
    {"GFNI", k7C, 8, kNone},
    {"VAES", k7C, 9, kAvx},
    {"VPCLMULQDQ", k7C, 10, kAvx},
    {"AVX512VNNI", k7C, 11, kAvx512},
    {"AVX512BITALG", k7C, 12, kAvx512},
    {"AVX512VPOPCNTDQ", k7C, 14, kAvx512},
    {"MOVDIRI", k7C, 27, kNone},
    {"MOVDIR64B", k7C, 28, kNone},
    {"AVX5124VNNIW", k7D, 2, kAvx512},
    {"AVX5124FMAPS", k7D, 3, kAvx512},
    {"AVX512VP2INTERSECT", k7D, 8, kAvx512},
    {"AMX_BF16", k7D, 22, kAmx},
    {"AVX512FP16", k7D, 23, kAvx512},
    {"AMX_TILE", k7D, 24, kAmx},
    {"AMX_INT8", k7D, 25, kAmx},
    // Leaf 7, second part.
    {"SHA512", k71A, 0, kAvx},
    {"SM3", k71A, 1, kAvx},
    {"SM4", k71A, 2, kAvx},
    {"RAOINT", k71A, 3, kNone},
    {"AVXVNNI", k71A, 4, kAvx},
    {"AVX512BF16", k71A, 5, kAvx512},
    {"CMPCCXADD", k71A, 7, kNone},
    {"AMX_FP16", k71A, 21, kAmx},
    {"AVXIFMA", k71A, 23, kAvx},
    {"AVXVNNIINT8", k71D, 4, kAvx},
    {"AVXNECONVERT", k71D, 5, kAvx},
    {"AMX_COMPLEX", k71D, 8, kAmx},
    {"AVXVNNIINT16", k71D, 10, kAvx},
    {"APX_F", k71D, 21, kApx},
    // Leaf 0x80000001.
    {"LAHF_SAHF", kExtC, 0, kNone},
    {"ABM", kExtC, 5, kNone},
    {"LZCNT", kExtC, 5, kNone},
    {"SSE4A", kExtC, 6, kNone},
    {"PRFCHW", kExtC, 8, kNone},
    {"XOP", kExtC, 11, kAvx},
    {"FMA4", kExtC, 16, kAvx},
    {"TBM", kExtC, 21, kNone},
    // Of the operating system, of caches, transactions and random numbers.
    {"CLDEMOTE", kNever, 0, kNone},
    {"CLFLUSHOPT", kNever, 0, kNone},
    {"CLWB", kNever, 0, kNone},
    {"CLZERO", kNever, 0, kNone},
    {"ENQCMD", kNever, 0, kNone},
    {"FSGSBASE", kNever, 0, kNone},
    {"HLE", kNever, 0, kNone},
    {"HRESET", kNever, 0, kNone},
    {"INVPCID", kNever, 0, kNone},
    {"KL", kNever, 0, kNone},
    {"LWP", kNever, 0, kNone},
    {"MWAIT", kNever, 0, kNone},
    {"MWAITX", kNever, 0, kNone},
    {"PCONFIG", kNever, 0, kNone},
    {"PKU", kNever, 0, kNone},
    {"PREFETCHI", kNever, 0, kNone},
    {"PREFETCHWT1", kNever, 0, kNone},
    {"PTWRITE", kNever, 0, kNone},
    {"RDPID", kNever, 0, kNone},
    {"RDPRU", kNever, 0, kNone},
    {"RDRND", kNever, 0, kNone},
    {"RDSEED", kNever, 0, kNone},
    {"RTM", kNever, 0, kNone},
    {"SERIALIZE", kNever, 0, kNone},
    {"SGX", kNever, 0, kNone},
    {"SHSTK", kNever, 0, kNone},
    {"TSXLDTRK", kNever, 0, kNone},
    {"UINTR", kNever, 0, kNone},
    {"USERMSR", kNever, 0, kNone},
    {"WAITPKG", kNever, 0, kNone},
    {"WBNOINVD", kNever, 0, kNone},
    {"WIDEKL", kNever, 0, kNone},
    {"XSAVE", kNever, 0, kNone},
    {"XSAVEC", kNever, 0, kNone},
    {"XSAVEOPT", kNever, 0, kNone},
    {"XSAVES", kNever, 0, kNone},
};

struct Processor {
  unsigned registers[kRegisters];
  uint32_t saved;
};

// By CPUID itself: __builtin_cpu_supports needs a library that not every compiler links into shared objects.
Processor ThisProcessor() {
  Processor found;
  memset(&found, 0, sizeof(found));
  unsigned a, b, c, d, *registers = found.registers;
  if (__get_cpuid(1, &a, &b, &c, &d)) {
    registers[k1C] = c;
    uint32_t high;
    if (c >> 27 & 1) __asm__("xgetbv" : "=a"(found.saved), "=d"(high) : "c"(0));
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    registers[k7B] = b;
    registers[k7C] = c;
    registers[k7D] = d;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
      registers[k71A] = a;
      registers[k71D] = d;
    }
  }
  if (__get_cpuid(0x80000001, &a, &b, &c, &d)) registers[kExtC] = c;
  return found;
}

bool Has(const Processor& processor, const char* name, size_t length, Origin origin) {
  for (const Feature& feature : kFeatures) {
    if (strlen(feature.name) != length || memcmp(feature.name, name, length) != 0) continue;
    if (feature.source == kNever) return true;
    bool present = processor.registers[feature.source] >> feature.bit & 1;
    return present && (processor.saved & feature.saved) == feature.saved;
  }
  return origin == kBuiltHere;
}

// Writes the features of a list ("AVX,AVX2") that this processor lacks, as far as there is room. True if it
// lacks any.
bool LacksFeatures(const char* needed, Origin origin, char* lacking, size_t room) {
  Processor processor = ThisProcessor();
  size_t end = 0;
  bool lacks = false;
  for (const char* name = needed; *name != 0;) {
    size_t length = strcspn(name, ",");
    if (length > 0 && !Has(processor, name, length, origin)) {
      if (end + length + 3 < room) {
        end += size_t(snprintf(lacking + end, room - end, "%s%.*s", lacks ? ", " : "", int(length), name));
      }
      lacks = true;
    }
    name += length + (name[length] == ',');
  }
  return lacks;
}
#else
bool LacksFeatures(const char*, Origin, char*, size_t) { return false; }
#endif

}  // namespace

#endif  // COCKTAIL_RUNTIME_FEATURES_H
