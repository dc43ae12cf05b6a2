// jax_cocktail program
#include "cocktail_base.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_math.h"
#include "cocktail_units.h"

CK_EXPORT int ck_program(const void* const* operands, void* const* results,
                         u8* workspace, CkUnit* unit) {
  const i64 size0 = unit->sizes[0];
  const u64* const alarm = (const u64*)(unit->alarm);
  const bool* const p0 = (const bool*)(operands[0]);
  f32* const r0 = (f32*)(results[0]);
  i64 v2;
  i64 v2_block;
  bool v4;
  bool v5;
  i32 v6;
  for (v2_block = 0; v2_block < size0; v2_block += 64) {
    if (ck_stops(unit, alarm, 0, v2_block)) return 0;
    for (v2 = v2_block; v2 < (size0 - v2_block < 64 ? size0 : v2_block + 64); ++v2) {
      {
        const i64 n1 = ck_clamp_index(v2, (size0 - 1));
        const bool t2 = p0[n1];
        v4 = t2;
        v5 = v4;
        const i32 t3 = ck_convert<i32>(v5);
        v6 = t3;
      }
      if (v6 <= 0) {
      }
      else {
        {
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t4 = r0[i0];
            const f32 t5 = ck_sin(t4);
            r0[i0] = t5;
          }
        }
      }
    }
  }
  return 0;
}
