// NVRTC has no host compiler behind it and so none of its builtins: the same names for the functions of CUDA.
#ifndef COCKTAIL_NVRTC_H
#define COCKTAIL_NVRTC_H

#define __builtin_acos acos
#define __builtin_acosh acosh
#define __builtin_asin asin
#define __builtin_asinh asinh
#define __builtin_atan atan
#define __builtin_atan2 atan2
#define __builtin_atanh atanh
#define __builtin_cbrt cbrt
#define __builtin_ceil ceil
#define __builtin_ceilf ceilf
#define __builtin_clzll(x) __clzll((long long)(x))
#define __builtin_copysign copysign
#define __builtin_copysignf copysignf
#define __builtin_cos cos
#define __builtin_cosh cosh
#define __builtin_ctzll(x) (__ffsll((long long)(x)) - 1)
#define __builtin_erf erf
#define __builtin_erfc erfc
#define __builtin_exp exp
#define __builtin_exp2 exp2
#define __builtin_expect(x, likely) (x)
#define __builtin_expm1 expm1
#define __builtin_fabs fabs
#define __builtin_fabsf fabsf
#define __builtin_floor floor
#define __builtin_floorf floorf
#define __builtin_fma fma
#define __builtin_fmaf fmaf
#define __builtin_fmod fmod
#define __builtin_fmodf fmodf
#define __builtin_inf() __longlong_as_double(0x7ff0000000000000ll)
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_lgamma lgamma
#define __builtin_log log
#define __builtin_log1p log1p
#define __builtin_memcpy memcpy
#define __builtin_memset memset
#define __builtin_nan(text) __longlong_as_double(0x7ff8000000000000ll)
#define __builtin_nanf(text) __int_as_float(0x7fc00000)
#define __builtin_popcountll(x) __popcll(x)
#define __builtin_pow pow
#define __builtin_rint rint
#define __builtin_rintf rintf
#define __builtin_sin sin
#define __builtin_sinh sinh
#define __builtin_sqrt sqrt
#define __builtin_sqrtf sqrtf
#define __builtin_tan tan
#define __builtin_tanh tanh
#define __builtin_trunc trunc
#define __builtin_truncf truncf

#endif  // COCKTAIL_NVRTC_H
