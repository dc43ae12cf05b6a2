// Processor features that a program was compiled for, as bits. The runtime compares them with the machine and
// refuses programs that cannot run, to avoid an illegal instruction.
#ifndef COCKTAIL_FEATURES_H
#define COCKTAIL_FEATURES_H

// Bit i: feature i of the runtime's table (runtime.cc, kFeatures) is used.
enum CkFeature : unsigned {
  CK_COMPILED_FEATURES = 0u
#if defined(__SSE4_2__)
                         | 1u << 0
#endif
#if defined(__FMA__)
                         | 1u << 1
#endif
#if defined(__AVX__)
                         | 1u << 2
#endif
#if defined(__BMI__)
                         | 1u << 3
#endif
#if defined(__AVX2__)
                         | 1u << 4
#endif
#if defined(__BMI2__)
                         | 1u << 5
#endif
#if defined(__AVX512F__)
                         | 1u << 6
#endif
#if defined(__AVX512DQ__)
                         | 1u << 7
#endif
#if defined(__AVX512IFMA__)
                         | 1u << 8
#endif
#if defined(__AVX512CD__)
                         | 1u << 9
#endif
#if defined(__AVX512BW__)
                         | 1u << 10
#endif
#if defined(__AVX512VL__)
                         | 1u << 11
#endif
#if defined(__AVX512VBMI__)
                         | 1u << 12
#endif
#if defined(__AVX512VBMI2__)
                         | 1u << 13
#endif
#if defined(__AVX512VNNI__)
                         | 1u << 14
#endif
#if defined(__AVX512BITALG__)
                         | 1u << 15
#endif
#if defined(__AVX512VPOPCNTDQ__)
                         | 1u << 16
#endif
};

#endif  // COCKTAIL_FEATURES_H
