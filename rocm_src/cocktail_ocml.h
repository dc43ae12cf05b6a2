// Functions of ROCm's device library in the place of the host library's. Without ROCm a program that calls
// one does not link; floor, ceil, trunc, rint, fma, copysign and fabs are instructions.
#ifndef COCKTAIL_OCML_H
#define COCKTAIL_OCML_H

#define CK_OCML(NAME)                                            \
  extern "C" __attribute__((device)) double __ocml_##NAME##_f64(double);
CK_OCML(acos)
CK_OCML(acosh)
CK_OCML(asin)
CK_OCML(asinh)
CK_OCML(atan)
CK_OCML(atanh)
CK_OCML(cbrt)
CK_OCML(cos)
CK_OCML(cosh)
CK_OCML(erf)
CK_OCML(erfc)
CK_OCML(exp)
CK_OCML(exp2)
CK_OCML(expm1)
CK_OCML(lgamma)
CK_OCML(log)
CK_OCML(log1p)
CK_OCML(sin)
CK_OCML(sinh)
CK_OCML(tan)
CK_OCML(tanh)
#undef CK_OCML
extern "C" __attribute__((device)) double __ocml_atan2_f64(double, double);
extern "C" __attribute__((device)) double __ocml_pow_f64(double, double);

#define __builtin_acos __ocml_acos_f64
#define __builtin_acosh __ocml_acosh_f64
#define __builtin_asin __ocml_asin_f64
#define __builtin_asinh __ocml_asinh_f64
#define __builtin_atan __ocml_atan_f64
#define __builtin_atan2 __ocml_atan2_f64
#define __builtin_atanh __ocml_atanh_f64
#define __builtin_cbrt __ocml_cbrt_f64
#define __builtin_cos __ocml_cos_f64
#define __builtin_cosh __ocml_cosh_f64
#define __builtin_erf __ocml_erf_f64
#define __builtin_erfc __ocml_erfc_f64
#define __builtin_exp __ocml_exp_f64
#define __builtin_exp2 __ocml_exp2_f64
#define __builtin_expm1 __ocml_expm1_f64
#define __builtin_lgamma __ocml_lgamma_f64
#define __builtin_log __ocml_log_f64
#define __builtin_log1p __ocml_log1p_f64
#define __builtin_pow __ocml_pow_f64
#define __builtin_sin __ocml_sin_f64
#define __builtin_sinh __ocml_sinh_f64
#define __builtin_tan __ocml_tan_f64
#define __builtin_tanh __ocml_tanh_f64

// Older compilers round these worse than the library does.
#if !defined(CK_FREESTANDING)
extern "C" __attribute__((device)) float __ocml_fmod_f32(float, float);
extern "C" __attribute__((device)) double __ocml_fmod_f64(double, double);
extern "C" __attribute__((device)) float __ocml_sqrt_f32(float);
extern "C" __attribute__((device)) double __ocml_sqrt_f64(double);
#define __builtin_fmodf __ocml_fmod_f32
#define __builtin_fmod __ocml_fmod_f64
#define __builtin_sqrtf __ocml_sqrt_f32
#define __builtin_sqrt __ocml_sqrt_f64
#endif

#endif  // COCKTAIL_OCML_H
