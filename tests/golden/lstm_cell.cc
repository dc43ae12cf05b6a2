// jax_cocktail program
#include "cocktail_base.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_math.h"
#include "cocktail_dot.h"
#include "cocktail_units.h"
CK_NOINLINE void outlined0(f32* x0, const f32* x1, f32* x2) {
  ck_dot_fixed<f32, f32, f32, 1, 32, 8, 0, 1, 32, 1, 0, 1>(1, x0, 0, x1, 0, x2, 0);
}

CK_EXPORT int ck_program(const void* const* operands, void* const* results,
                         u8* workspace, CkUnit* unit) {
  const i64 size0 = unit->sizes[0];
  const u64* const alarm = (const u64*)(unit->alarm);
  const f32* const p0 = (const f32*)(operands[0]);
  f32* const r0 = (f32*)(results[0]);
  f32* const r1 = (f32*)(results[1]);
  f32* const w0_f32 = (f32*)(workspace + 0);
  i64 v3;
  i64 v3_block;
  for (v3_block = 0; v3_block < size0; v3_block += 8) {
    if (ck_stops(unit, alarm, 0, v3_block)) return 0;
    for (v3 = v3_block; v3 < (size0 - v3_block < 8 ? size0 : v3_block + 8); ++v3) {
      outlined0(r0, p0, w0_f32);
      {
        CK_LANES
        for (i64 i0 = 0; i0 < 8; ++i0) {
          const f32 t1 = w0_f32[i0 + 8];
          const f32 t2 = ck_logistic(t1);
          const f32 t3 = r1[i0];
          const f32 t4 = t2 * t3;
          const f32 t5 = w0_f32[i0];
          const f32 t6 = ck_logistic(t5);
          const f32 t7 = w0_f32[i0 + 16];
          const f32 t8 = ck_tanh(t7);
          const f32 t9 = t6 * t8;
          const f32 t10 = t4 + t9;
          const f32 t11 = w0_f32[i0 + 24];
          const f32 t12 = ck_logistic(t11);
          const f32 t13 = ck_tanh(t10);
          const f32 t14 = t12 * t13;
          r1[i0] = t10;
          r0[i0] = t14;
        }
      }
    }
  }
  return 0;
}
