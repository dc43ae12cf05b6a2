// jax_cocktail program
#define CK_THREADS 128
#define CK_SCRATCH_BYTES 8192
#define CK_OPERANDS 2
#define CK_RESULTS 1
#define CK_MOST_UNITS 1
#define CK_RESIDENT_UNITS 1
#define CK_SHARED_BYTES 0
#define CK_OWN_BYTES 64
#define CK_RESIDENT_BYTES 0
#define CK_SIZES 1
#define CK_NOTHING_CROSSES 1
#include "cocktail_base.h"
#include "cocktail_units.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_math.h"

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results,
                       u8* workspace, CkUnit* unit) {
  const i32 size0 = i32(unit->sizes[0]);
  CK_ASSUME(size0 >= 9);
  const bool* const p0 = (const bool*)(operands[0]);
  f32* const r0 = (f32*)(results[0]);
  bool v4;
  bool v5;
  i32 v6;
  for (i32 v2 = 0; v2 < size0; ++v2) {
    {
      const i32 n1 = ck_clamp_index(i64(v2), (size0 - 1));
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
        for (i32 i0 = ck_lane(); i0 < 64; i0 += 128) {
          const f32 t4 = r0[i0];
          const f32 t5 = ck_sin(t4);
          r0[i0] = t5;
        }
      }
    }
  }
}
CK_ENTRIES
