// jax_cocktail program
#define CK_THREADS 128
#define CK_SCRATCH_BYTES 8192
#define CK_OPERANDS 2
#define CK_RESULTS 2
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
#include "cocktail_block.h"

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results,
                       u8* workspace, CkUnit* unit) {
  const f32* const p0 = (const f32*)(operands[0]);
  const f32* const p1 = (const f32*)(operands[1]);
  f32* const r0 = (f32*)(results[0]);
  f32* const r1 = (f32*)(results[1]);
  ck_copy(r0, p0, 64);
  ck_copy(r1, p1, 64);
  for (i32 v2 = 0; v2 < 5; ++v2) {
    ck_block_barrier();
    {
      for (i32 i = ck_lane(); i < 16; i += 128) {
        const f32 m1 = r1[i];
        const f32 m2 = r0[i];
        r0[i] = m1;
        r1[i] = m2;
      }
    }
  }
}
CK_ENTRIES
