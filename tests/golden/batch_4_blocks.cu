// jax_cocktail program
#define CK_THREADS 128
#define CK_SCRATCH_BYTES 36864
#define CK_OPERANDS 2
#define CK_RESULTS 1
#define CK_MOST_UNITS 4
#define CK_RESIDENT_UNITS 1
#define CK_SHARED_BYTES 0
#define CK_OWN_BYTES 32832
#define CK_RESIDENT_BYTES 0
#define CK_NOTHING_CROSSES 1
#include "cocktail_base.h"
#include "cocktail_units.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_block.h"
#include "cocktail_math.h"
#include "cocktail_dot.h"

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results,
                       u8* workspace, CkUnit* unit) {
  f32* const o0_f32 = (f32*)(unit->own + 0);
  f32* const o16384_f32 = (f32*)(unit->own + 16384);
  const f32* const p0 = (const f32*)(operands[0]);
  const f32* const p1 = (const f32*)(operands[1]);
  f32* const r0 = (f32*)(results[0]);
  i64 v11;
  for (i32 v7 = unit->index; v7 < 4; v7 += unit->count) {
    {
      const i64 t1 = i64(v7) * i64(16LL);
      v11 = t1;
    }
    const f32* const d13 = p0 + ck_clamp_index(v11, 48) * 256;
    ck_block_barrier();
    ck_copy(o16384_f32, d13, 16384);
    for (i32 v14 = 0; v14 < 5; ++v14) {
      ck_block_barrier();
      {
        ck_dot_fixed<f32, f32, f32, 16, 256, 256, 256, 1, 256, 1, 256, 1, CkDotTiles<CK_DOT_FMA, 16, 64, 32, 4, 2, 1, 3>>(1, o16384_f32, 0, p1, 0, o0_f32, 0);
      }
      ck_block_barrier();
      {
        {
          i32 at = ck_lane();
          for (; at < 3200; at += 1024) {
            f32 h2[8];
            #pragma unroll
            for (i32 j = 0; j < 8; ++j) {
              const i32 i1 = at + 128 * j;
              const f32 t3 = o0_f32[i1];
              const f32 t4 = ck_tanh(t3);
              h2[j] = t4;
            }
            #pragma unroll
            for (i32 j = 0; j < 8; ++j) {
              const i32 i1 = at + 128 * j;
              o16384_f32[i1] = h2[j];
            }
          }
        }
      }
    }
    ck_block_barrier();
    {
      const i32 n5 = ck_clamp_index(v11, 48);
      {
        i32 at = ck_lane();
        for (; at < 3200; at += 1024) {
          f32 h6[8];
          #pragma unroll
          for (i32 j = 0; j < 8; ++j) {
            const i32 i1 = at + 128 * j;
            const f32 t7 = o16384_f32[i1];
            h6[j] = t7;
          }
          #pragma unroll
          for (i32 j = 0; j < 8; ++j) {
            const i32 i1 = at + 128 * j;
            r0[256 * n5 + i1] = h6[j];
          }
        }
      }
    }
  }
}
CK_ENTRIES
