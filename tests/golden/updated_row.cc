// jax_cocktail program
#include "cocktail_base.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"

CK_EXPORT int ck_program(const void* const* operands, void* const* results,
                         u8* workspace, CkUnit* unit) {
  f32* const r0 = (f32*)(results[0]);
  for (i64 v2 = 0; v2 < 6; ++v2) {
    const f32* const d4 = r0 + ck_clamp_index(v2, 5) * 8;
    {
      const i64 n1 = ck_clamp_index(v2, 5);
      CK_LANES
      for (i64 i0 = 0; i0 < 8; ++i0) {
        const f32 t2 = d4[i0];
        const f32 t3 = t2 * t2;
        const f32 t4 = t3 + t2;
        r0[8 * n1 + i0] = t4;
      }
    }
  }
  return 0;
}
