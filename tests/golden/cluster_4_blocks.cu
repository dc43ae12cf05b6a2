// jax_cocktail program
#define CK_THREADS 128
#define CK_SCRATCH_BYTES 36864
#define CK_OPERANDS 3
#define CK_RESULTS 2
#define CK_MOST_UNITS 4
#define CK_RESIDENT_UNITS 4
#define CK_SHARED_BYTES 409600
#define CK_OWN_BYTES 10304
#define CK_RESIDENT_BYTES 65536
#define CK_ONE_CLUSTER 1
#include "cocktail_base.h"
#include "cocktail_units.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_block.h"
#include "cocktail_math.h"
#include "cocktail_dot.h"
#include "cocktail_program.h"

template <bool RESIDENT>
CK_INLINE void ck_body(const void* const* operands, void* const* results,
                       u8* workspace, CkUnit* unit) {
  f32* const o0_f32 = (f32*)(unit->own + 0);
  f32* const o8192_f32 = (f32*)(unit->own + 8192);
  const f32* const p0 = (const f32*)(operands[0]);
  const f32* const p1 = (const f32*)(operands[1]);
  const f32* const p2 = (const f32*)(operands[2]);
  f32* const r0 = (f32*)(results[0]);
  f32* const r1 = (f32*)(results[1]);
  f32* const w0_f32 = (f32*)(ck_part<RESIDENT>(unit, workspace + 0, 0, 65536, 0));
  f32* const w262144_f32 = (f32*)(workspace + 262144);
  f32* const w393216_f32 = (f32*)(workspace + 393216);
  f32* const w401408_f32 = (f32*)(workspace + 401408);
  i64 v109;
  i64 v123;
  i64 v154;
  i64 v165;
  i64 v56;
  i64 v63;
  if (unit->index == 0) {
    {
      #pragma unroll 8
      for (i32 i1 = ck_lane(); i1 < 2048; i1 += 128) {
        r1[i1] = 0.0f;
      }
    }
  }
  if (unit->index == 0) {
    {
      #pragma unroll 8
      for (i32 i2 = ck_lane(); i2 < 8192; i2 += 128) {
        r0[i2] = 0.0f;
      }
    }
  }
  for (i32 v52 = unit->index; v52 < 4; v52 += unit->count) {
    {
      const i64 t1 = i64(v52) * i64(4LL);
      v56 = t1;
    }
    const f32* const d58 = p0 + ck_clamp_index(v56, 12) * 128;
    ck_block_barrier();
    {
      const i32 n2 = ck_clamp_index(v56, 12);
      for (i32 i0 = 0; i0 < 4; ++i0) {
        ck_dot_fixed<f32, f32, f32, 4, 512, 128, 128, 1, 512, 1, 512, 1>(1, d58 + 2048 * i0, 0, p1, 0, (w262144_f32 + 512 * n2) + 8192 * i0, 0);
        ck_block_barrier();
      }
    }
  }
  for (i32 v61 = unit->index; v61 < 4; v61 += unit->count) {
    {
      const i64 t3 = i64(v61) * i64(32LL);
      v63 = t3;
    }
    const f32* const d65 = p2 + ck_clamp_index(v63, 96) * 1;
    ck_block_barrier();
    {
      const i32 n4 = ck_clamp_index(i64(v61), 3);
      #pragma unroll 8
      for (i32 l = ck_lane(); l < 16384; l += 128) {
        const i32 i2 = l % 32;
        const i32 i1 = l / 32;
        ck_move<RESIDENT>(&w0_f32[16384 * n4 + 32 * i1 + i2], &d65[128 * i1 + i2], true);
      }
      ck_moved<RESIDENT>();
    }
  }
  ck_block_barrier();
  if (unit->index == 0) {
    {
      ck_copy(w401408_f32, r1, 8192);
    }
  }
  for (i32 v107 = 0; v107 < 2; ++v107) {
    ck_arrive(unit);
    {
      const i64 t6 = i64(v107) * i64(2LL);
      v109 = t6;
    }
    ck_wait(unit);
    for (i32 v115 = unit->index; v115 < 4; v115 += unit->count) {
      const f32* const d120 = w0_f32 + ck_clamp_index(i64(v115), 3) * 16384;
      {
        const i64 t7 = i64(v115) * i64(32LL);
        v123 = t7;
      }
      const f32* const d124 = w262144_f32 + ck_clamp_index(v109, 3) * 8192 + ck_clamp_index(v123, 96) * 1;
      const f32* const d126 = w401408_f32 + ck_clamp_index(v123, 96) * 1;
      ck_block_barrier();
      {
        ck_dot_fixed<f32, f32, f32, 16, 128, 128, 128, 1, 128, 1, 128, 1>(1, r1, 0, d120, 0, o0_f32, 0);
      }
      ck_block_barrier();
      {
        const i32 n8 = ck_clamp_index(v109, 3);
        const i32 n9 = ck_clamp_index(v123, 96);
        const i32 n10 = ck_clamp_index(v123, 96);
        const i32 n11 = ck_clamp_index(v123, 96);
        {
          i32 at = ck_lane();
          for (; at < 384; at += 256) {
            f32 h12[2];
            f32 h13[2];
            f32 h14[2];
            f32 h15[2];
            #pragma unroll
            for (i32 j = 0; j < 2; ++j) {
              const i32 l = at + 128 * j;
              const i32 i1 = l % 32;
              const i32 i0 = l / 32;
              const f32 t16 = d124[512 * i0 + i1 + 384];
              const f32 t17 = o0_f32[128 * i0 + i1 + 96];
              const f32 t18 = t16 + t17;
              const f32 t19 = ck_logistic(t18);
              const f32 t20 = d124[512 * i0 + i1 + 128];
              const f32 t21 = o0_f32[128 * i0 + i1 + 32];
              const f32 t22 = t20 + t21;
              const f32 t23 = ck_logistic(t22);
              const f32 t24 = d126[128 * i0 + i1];
              const f32 t25 = t23 * t24;
              const f32 t26 = d124[512 * i0 + i1];
              const f32 t27 = o0_f32[128 * i0 + i1];
              const f32 t28 = t26 + t27;
              const f32 t29 = ck_logistic(t28);
              const f32 t30 = d124[512 * i0 + i1 + 256];
              const f32 t31 = o0_f32[128 * i0 + i1 + 64];
              const f32 t32 = t30 + t31;
              const f32 t33 = ck_tanh(t32);
              const f32 t34 = t29 * t33;
              const f32 t35 = t25 + t34;
              const f32 t36 = ck_tanh(t35);
              const f32 t37 = t19 * t36;
              h12[j] = t37;
              h13[j] = t37;
              h14[j] = t35;
              h15[j] = t37;
            }
            #pragma unroll
            for (i32 j = 0; j < 2; ++j) {
              const i32 l = at + 128 * j;
              const i32 i1 = l % 32;
              const i32 i0 = l / 32;
              o8192_f32[32 * i0 + i1] = h12[j];
              r0[2048 * n8 + n9 + 128 * i0 + i1] = h13[j];
              w401408_f32[n10 + 128 * i0 + i1] = h14[j];
              w393216_f32[n11 + 128 * i0 + i1] = h15[j];
            }
          }
        }
      }
    }
    ck_arrive(unit);
    {
      const i64 t38 = v109 + i64(1LL);
      v154 = t38;
    }
    ck_wait(unit);
    for (i32 v157 = unit->index; v157 < 4; v157 += unit->count) {
      const f32* const d162 = w0_f32 + ck_clamp_index(i64(v157), 3) * 16384;
      {
        const i64 t39 = i64(v157) * i64(32LL);
        v165 = t39;
      }
      const f32* const d166 = w262144_f32 + ck_clamp_index(v154, 3) * 8192 + ck_clamp_index(v165, 96) * 1;
      const f32* const d168 = w401408_f32 + ck_clamp_index(v165, 96) * 1;
      ck_block_barrier();
      {
        ck_dot_fixed<f32, f32, f32, 16, 128, 128, 128, 1, 128, 1, 128, 1>(1, w393216_f32, 0, d162, 0, o0_f32, 0);
      }
      ck_block_barrier();
      {
        const i32 n40 = ck_clamp_index(v154, 3);
        const i32 n41 = ck_clamp_index(v165, 96);
        const i32 n42 = ck_clamp_index(v165, 96);
        const i32 n43 = ck_clamp_index(v165, 96);
        {
          i32 at = ck_lane();
          for (; at < 384; at += 256) {
            f32 h44[2];
            f32 h45[2];
            f32 h46[2];
            f32 h47[2];
            #pragma unroll
            for (i32 j = 0; j < 2; ++j) {
              const i32 l = at + 128 * j;
              const i32 i1 = l % 32;
              const i32 i0 = l / 32;
              const f32 t48 = d166[512 * i0 + i1 + 384];
              const f32 t49 = o0_f32[128 * i0 + i1 + 96];
              const f32 t50 = t48 + t49;
              const f32 t51 = ck_logistic(t50);
              const f32 t52 = d166[512 * i0 + i1 + 128];
              const f32 t53 = o0_f32[128 * i0 + i1 + 32];
              const f32 t54 = t52 + t53;
              const f32 t55 = ck_logistic(t54);
              const f32 t56 = d168[128 * i0 + i1];
              const f32 t57 = t55 * t56;
              const f32 t58 = d166[512 * i0 + i1];
              const f32 t59 = o0_f32[128 * i0 + i1];
              const f32 t60 = t58 + t59;
              const f32 t61 = ck_logistic(t60);
              const f32 t62 = d166[512 * i0 + i1 + 256];
              const f32 t63 = o0_f32[128 * i0 + i1 + 64];
              const f32 t64 = t62 + t63;
              const f32 t65 = ck_tanh(t64);
              const f32 t66 = t61 * t65;
              const f32 t67 = t57 + t66;
              const f32 t68 = ck_tanh(t67);
              const f32 t69 = t51 * t68;
              h44[j] = t69;
              h45[j] = t69;
              h46[j] = t67;
              h47[j] = t69;
            }
            #pragma unroll
            for (i32 j = 0; j < 2; ++j) {
              const i32 l = at + 128 * j;
              const i32 i1 = l % 32;
              const i32 i0 = l / 32;
              o8192_f32[32 * i0 + i1] = h44[j];
              r0[2048 * n40 + n41 + 128 * i0 + i1] = h45[j];
              w401408_f32[n42 + 128 * i0 + i1] = h46[j];
              r1[n43 + 128 * i0 + i1] = h47[j];
            }
          }
        }
      }
    }
  }
}
CK_ENTRIES
