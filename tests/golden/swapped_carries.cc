// jax_cocktail program
#include "cocktail_base.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"

CK_EXPORT int ck_program(const void* const* operands, void* const* results,
                         u8* workspace, CkUnit* unit) {
  const f32* const p0 = (const f32*)(operands[0]);
  const f32* const p1 = (const f32*)(operands[1]);
  f32* const r0 = (f32*)(results[0]);
  f32* const r1 = (f32*)(results[1]);
  __builtin_memcpy(r0, p0, 64);
  __builtin_memcpy(r1, p1, 64);
  for (i64 v2 = 0; v2 < 5; ++v2) {
    {
      CK_LANES
      for (i64 i = 0; i < 16; ++i) {
        const f32 m1 = r1[i];
        const f32 m2 = r0[i];
        r0[i] = m1;
        r1[i] = m2;
      }
    }
  }
  return 0;
}
