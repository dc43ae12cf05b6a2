// jax_cocktail program
#define CK_THREADS 128
#define CK_SCRATCH_BYTES 8192
#define CK_OPERANDS 1
#define CK_RESULTS 1
#define CK_MOST_UNITS 1
#define CK_RESIDENT_UNITS 1
#define CK_SHARED_BYTES 0
#define CK_OWN_BYTES 64
#define CK_RESIDENT_BYTES 0
#define CK_NOTHING_CROSSES 1
#include "cocktail_base.h"
#include "cocktail_units.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results,
                       u8* workspace, CkUnit* unit) {
  f32* const r0 = (f32*)(results[0]);
  for (i32 v2 = 0; v2 < 6; ++v2) {
    const f32* const d4 = r0 + ck_clamp_index(i64(v2), 5) * 8;
    ck_block_barrier();
    {
      const i32 n1 = ck_clamp_index(i64(v2), 5);
      for (i32 i0 = ck_lane(); i0 < 8; i0 += 128) {
        const f32 t2 = d4[i0];
        const f32 t3 = t2 * t2;
        const f32 t4 = t3 + t2;
        r0[8 * n1 + i0] = t4;
      }
    }
  }
}
CK_ENTRIES
