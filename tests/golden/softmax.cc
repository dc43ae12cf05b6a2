// jax_cocktail program
#include "cocktail_base.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_math.h"

CK_EXPORT int ck_program(const void* const* operands, void* const* results,
                         u8* workspace, CkUnit* unit) {
  const f32* const p0 = (const f32*)(operands[0]);
  f32* const r0 = (f32*)(results[0]);
  f32* const w0_f32 = (f32*)(workspace + 0);
  f32* const w128_f32 = (f32*)(workspace + 128);
  f32* const w192_f32 = (f32*)(workspace + 192);
  __builtin_memcpy(r0, p0, 128);
  for (i64 v1 = 0; v1 < 3; ++v1) {
    {
      for (i64 i0 = 0; i0 < 4; ++i0) {
        f32 a1 = -__builtin_inff();
        for (i64 i1 = 0; i1 < 8; ++i1) {
          const f32 t2 = r0[8 * i0 + i1];
          a1 = ck_max(a1, t2);
        }
        w128_f32[i0] = a1;
      }
    }
    {
      for (i64 i0 = 0; i0 < 4; ++i0) {
        f32 a3 = f32(0);
        const f32 t5 = w128_f32[i0];
        for (i64 i1 = 0; i1 < 8; ++i1) {
          const f32 t4 = r0[8 * i0 + i1];
          const f32 t6 = t4 - t5;
          const f32 t7 = ck_exp(t6);
          a3 = a3 + t7;
          w0_f32[8 * i0 + i1] = t7;
        }
        w192_f32[i0] = a3;
      }
    }
    {
      for (i64 i0 = 0; i0 < 4; ++i0) {
        const f32 t9 = w192_f32[i0];
        CK_LANES
        for (i64 i1 = 0; i1 < 8; ++i1) {
          const f32 t8 = w0_f32[8 * i0 + i1];
          const f32 t10 = ck_div(t8, t9);
          r0[8 * i0 + i1] = t10;
        }
      }
    }
  }
  return 0;
}
