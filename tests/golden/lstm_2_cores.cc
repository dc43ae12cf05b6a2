// jax_cocktail program
#include "cocktail_base.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_math.h"
#include "cocktail_dot.h"
#include "cocktail_units.h"
CK_EXPORT const i64 ck_most_units;
const i64 ck_most_units = 2;
CK_NOINLINE void outlined0(i64 x0, const f32* x1, const f32* x2, f32* x3) {
  const i64 n1 = ck_clamp_index(x0, 64);
  for (i64 i0 = 0; i0 < 4; ++i0) {
    ck_dot_fixed<f32, f32, f32, 4, 64, 128, 128, 1, 512, 1, 512, 1>(1, x1, 0, x2 + 128 * i0, 0, (x3 + n1) + 128 * i0, 0);
  }
}
CK_NOINLINE void outlined1(f32* x0, const f32* x1, f32* x2) {
  for (i64 i0 = 0; i0 < 4; ++i0) {
    ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, x0, 0, x1 + 128 * i0, 0, x2 + 64 * i0, 0);
  }
}

CK_EXPORT int ck_program(const void* const* operands, void* const* results,
                         u8* workspace, CkUnit* unit) {
  const u64* const alarm = (const u64*)(unit->alarm);
  f32* const o0_f32 = (f32*)(unit->own + 0);
  f32* const o1024_f32 = (f32*)(unit->own + 1024);
  const f32* const p0 = (const f32*)(operands[0]);
  const f32* const p1 = (const f32*)(operands[1]);
  const f32* const p2 = (const f32*)(operands[2]);
  f32* const r0 = (f32*)(results[0]);
  f32* const r1 = (f32*)(results[1]);
  f32* const w0_f32 = (f32*)(workspace + 0);
  f32* const w8192_f32 = (f32*)(workspace + 8192);
  f32* const w8704_f32 = (f32*)(workspace + 8704);
  i64 v109;
  i64 v142;
  i64 v150;
  i64 v56;
  i64 v98;
  if (unit->index == 0) {
    {
      CK_LANES
      for (i64 i0 = 0; i0 < 128; ++i0) {
        r1[i0] = 0.0f;
      }
    }
  }
  if (unit->index == 0) {
    {
      CK_LANES
      for (i64 i1 = 0; i1 < 512; ++i1) {
        r0[i1] = 0.0f;
      }
    }
  }
  for (i64 v52 = unit->index; v52 < 2; v52 += unit->count) {
    {
      const i64 t1 = v52 * i64(64LL);
      v56 = t1;
    }
    const f32* const d58 = p1 + ck_clamp_index(v56, 64) * 1;
    outlined0(v56, p0, d58, w0_f32);
  }
  if (unit->index == 0) {
    {
      __builtin_memcpy(w8704_f32, r1, 512);
    }
  }
  for (i64 v96 = 0; v96 < 2; ++v96) {
    if (ck_stops(unit, alarm, 0, v96)) return 0;
    ck_arrive(unit);
    {
      const i64 t2 = v96 * i64(2LL);
      v98 = t2;
      const i64 t3 = v98 + i64(1LL);
      v142 = t3;
    }
    if (ck_wait(unit)) return 0;
    for (i64 v104 = unit->index; v104 < 2; v104 += unit->count) {
      {
        const i64 t4 = v104 * i64(64LL);
        v109 = t4;
      }
      const f32* const d111 = p2 + ck_clamp_index(v109, 64) * 1;
      const f32* const d112 = w0_f32 + ck_clamp_index(v98, 3) * 512 + ck_clamp_index(v109, 64) * 1;
      const f32* const d114 = w8704_f32 + ck_clamp_index(v109, 64) * 1;
      outlined1(r1, d111, o0_f32);
      {
        const i64 n5 = ck_clamp_index(v98, 3);
        const i64 n6 = ck_clamp_index(v109, 64);
        const i64 n7 = ck_clamp_index(v109, 64);
        const i64 n8 = ck_clamp_index(v109, 64);
        CK_LANES
        for (i64 i0 = 0; i0 < 64; ++i0) {
          const f32 t9 = d112[i0 + 384];
          const f32 t10 = o0_f32[i0 + 192];
          const f32 t11 = t9 + t10;
          const f32 t12 = ck_logistic(t11);
          const f32 t13 = d112[i0 + 128];
          const f32 t14 = o0_f32[i0 + 64];
          const f32 t15 = t13 + t14;
          const f32 t16 = ck_logistic(t15);
          const f32 t17 = d114[i0];
          const f32 t18 = t16 * t17;
          const f32 t19 = d112[i0];
          const f32 t20 = o0_f32[i0];
          const f32 t21 = t19 + t20;
          const f32 t22 = ck_logistic(t21);
          const f32 t23 = d112[i0 + 256];
          const f32 t24 = o0_f32[i0 + 128];
          const f32 t25 = t23 + t24;
          const f32 t26 = ck_tanh(t25);
          const f32 t27 = t22 * t26;
          const f32 t28 = t18 + t27;
          const f32 t29 = ck_tanh(t28);
          const f32 t30 = t12 * t29;
          o1024_f32[i0] = t30;
          r0[128 * n5 + n6 + i0] = t30;
          w8704_f32[n7 + i0] = t28;
          w8192_f32[n8 + i0] = t30;
        }
      }
    }
    ck_arrive(unit);
    if (ck_wait(unit)) return 0;
    for (i64 v145 = unit->index; v145 < 2; v145 += unit->count) {
      {
        const i64 t31 = v145 * i64(64LL);
        v150 = t31;
      }
      const f32* const d152 = p2 + ck_clamp_index(v150, 64) * 1;
      const f32* const d153 = w0_f32 + ck_clamp_index(v142, 3) * 512 + ck_clamp_index(v150, 64) * 1;
      const f32* const d155 = w8704_f32 + ck_clamp_index(v150, 64) * 1;
      outlined1(w8192_f32, d152, o0_f32);
      {
        const i64 n32 = ck_clamp_index(v142, 3);
        const i64 n33 = ck_clamp_index(v150, 64);
        const i64 n34 = ck_clamp_index(v150, 64);
        const i64 n35 = ck_clamp_index(v150, 64);
        CK_LANES
        for (i64 i0 = 0; i0 < 64; ++i0) {
          const f32 t36 = d153[i0 + 384];
          const f32 t37 = o0_f32[i0 + 192];
          const f32 t38 = t36 + t37;
          const f32 t39 = ck_logistic(t38);
          const f32 t40 = d153[i0 + 128];
          const f32 t41 = o0_f32[i0 + 64];
          const f32 t42 = t40 + t41;
          const f32 t43 = ck_logistic(t42);
          const f32 t44 = d155[i0];
          const f32 t45 = t43 * t44;
          const f32 t46 = d153[i0];
          const f32 t47 = o0_f32[i0];
          const f32 t48 = t46 + t47;
          const f32 t49 = ck_logistic(t48);
          const f32 t50 = d153[i0 + 256];
          const f32 t51 = o0_f32[i0 + 128];
          const f32 t52 = t50 + t51;
          const f32 t53 = ck_tanh(t52);
          const f32 t54 = t49 * t53;
          const f32 t55 = t45 + t54;
          const f32 t56 = ck_tanh(t55);
          const f32 t57 = t39 * t56;
          o1024_f32[i0] = t57;
          r0[128 * n32 + n33 + i0] = t57;
          w8704_f32[n34 + i0] = t55;
          r1[n35 + i0] = t57;
        }
      }
    }
  }
  return 0;
}
