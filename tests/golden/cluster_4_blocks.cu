// jax_cocktail program
#define CK_THREADS 128
#define CK_SCRATCH_BYTES 36864
#define CK_OPERANDS 3
#define CK_RESULTS 2
#define CK_MOST_UNITS 4
#define CK_RESIDENT_UNITS 4
#define CK_SHARED_BYTES 1343488
#define CK_OWN_BYTES 20544
#define CK_RESIDENT_BYTES 0
#define CK_ONE_CLUSTER 1
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
  const f32* const p2 = (const f32*)(operands[2]);
  f32* const r0 = (f32*)(results[0]);
  f32* const r1 = (f32*)(results[1]);
  f32* const w0_f32 = (f32*)(workspace + 0);
  f32* const w1048576_f32 = (f32*)(workspace + 1048576);
  f32* const w1310720_f32 = (f32*)(workspace + 1310720);
  f32* const w1327104_f32 = (f32*)(workspace + 1327104);
  i64 v109;
  i64 v142;
  i64 v150;
  i64 v185;
  i64 v56;
  i64 v98;
  if (unit->index == 0) {
    {
      #pragma unroll 8
      for (i32 i1 = ck_lane(); i1 < 4096; i1 += 128) {
        r1[i1] = 0.0f;
      }
    }
  }
  if (unit->index == 0) {
    {
      #pragma unroll 8
      for (i32 i2 = ck_lane(); i2 < 16384; i2 += 128) {
        r0[i2] = 0.0f;
      }
    }
  }
  for (i32 v52 = unit->index; v52 < 4; v52 += unit->count) {
    {
      const i64 t1 = i64(v52) * i64(4LL);
      v56 = t1;
    }
    const f32* const d58 = p0 + ck_clamp_index(v56, 12) * 256;
    ck_block_barrier();
    {
      const i32 n2 = ck_clamp_index(v56, 12);
      for (i32 i0 = 0; i0 < 4; ++i0) {
        ck_dot_fixed<f32, f32, f32, 4, 1024, 256, 256, 1, 1024, 1, 1024, 1, CkDotColumns<4, 4, 32, 1>>(1, d58 + 4096 * i0, 0, p1, 0, (w1048576_f32 + 1024 * n2) + 16384 * i0, 0);
        ck_block_barrier();
      }
    }
  }
  for (i32 v182 = unit->index; v182 < 4; v182 += unit->count) {
    {
      const i64 t3 = i64(v182) * i64(64LL);
      v185 = t3;
    }
    const f32* const d186 = p2 + ck_clamp_index(v185, 192) * 1;
    ck_block_barrier();
    {
      const i32 n4 = ck_clamp_index(i64(v182), 3);
      {
        i32 at = ck_lane();
        for (; at < 64640; at += 1024) {
          f32 h5[8];
          #pragma unroll
          for (i32 j = 0; j < 8; ++j) {
            const i32 l = at + 128 * j;
            const i32 i2 = l % 64;
            const i32 i1 = l / 64;
            const f32 t6 = d186[256 * i1 + i2];
            h5[j] = t6;
          }
          #pragma unroll
          for (i32 j = 0; j < 8; ++j) {
            const i32 l = at + 128 * j;
            const i32 i2 = l % 64;
            const i32 i1 = l / 64;
            w0_f32[65536 * n4 + 64 * i1 + i2] = h5[j];
          }
        }
      }
    }
  }
  ck_block_barrier();
  if (unit->index == 0) {
    {
      ck_copy(w1327104_f32, r1, 16384);
    }
  }
  for (i32 v96 = 0; v96 < 2; ++v96) {
    ck_arrive(unit);
    {
      const i64 t7 = i64(v96) * i64(2LL);
      v98 = t7;
      const i64 t8 = v98 + i64(1LL);
      v142 = t8;
    }
    ck_wait(unit);
    for (i32 v104 = unit->index; v104 < 4; v104 += unit->count) {
      const f32* const d194 = w0_f32 + ck_clamp_index(i64(v104), 3) * 65536;
      {
        const i64 t9 = i64(v104) * i64(64LL);
        v109 = t9;
      }
      const f32* const d112 = w1048576_f32 + ck_clamp_index(v98, 3) * 16384 + ck_clamp_index(v109, 192) * 1;
      const f32* const d114 = w1327104_f32 + ck_clamp_index(v109, 192) * 1;
      ck_block_barrier();
      {
        ck_dot_fixed<f32, f32, f32, 16, 256, 256, 256, 1, 256, 1, 256, 1, CkDotTiles<CK_DOT_FMA, 16, 64, 32, 4, 2, 1, 3>>(1, r1, 0, d194, 0, o0_f32, 0);
      }
      ck_block_barrier();
      {
        const i32 n10 = ck_clamp_index(v98, 3);
        const i32 n11 = ck_clamp_index(v109, 192);
        const i32 n12 = ck_clamp_index(v109, 192);
        const i32 n13 = ck_clamp_index(v109, 192);
        {
          i32 at = ck_lane();
          for (; at < 896; at += 256) {
            f32 h14[2];
            f32 h15[2];
            f32 h16[2];
            f32 h17[2];
            #pragma unroll
            for (i32 j = 0; j < 2; ++j) {
              const i32 l = at + 128 * j;
              const i32 i1 = l % 64;
              const i32 i0 = l / 64;
              const f32 t18 = d112[1024 * i0 + i1 + 768];
              const f32 t19 = o0_f32[256 * i0 + i1 + 192];
              const f32 t20 = t18 + t19;
              const f32 t21 = ck_logistic(t20);
              const f32 t22 = d112[1024 * i0 + i1 + 256];
              const f32 t23 = o0_f32[256 * i0 + i1 + 64];
              const f32 t24 = t22 + t23;
              const f32 t25 = ck_logistic(t24);
              const f32 t26 = d114[256 * i0 + i1];
              const f32 t27 = t25 * t26;
              const f32 t28 = d112[1024 * i0 + i1];
              const f32 t29 = o0_f32[256 * i0 + i1];
              const f32 t30 = t28 + t29;
              const f32 t31 = ck_logistic(t30);
              const f32 t32 = d112[1024 * i0 + i1 + 512];
              const f32 t33 = o0_f32[256 * i0 + i1 + 128];
              const f32 t34 = t32 + t33;
              const f32 t35 = ck_tanh(t34);
              const f32 t36 = t31 * t35;
              const f32 t37 = t27 + t36;
              const f32 t38 = ck_tanh(t37);
              const f32 t39 = t21 * t38;
              h14[j] = t39;
              h15[j] = t39;
              h16[j] = t37;
              h17[j] = t39;
            }
            #pragma unroll
            for (i32 j = 0; j < 2; ++j) {
              const i32 l = at + 128 * j;
              const i32 i1 = l % 64;
              const i32 i0 = l / 64;
              o16384_f32[64 * i0 + i1] = h14[j];
              r0[4096 * n10 + n11 + 256 * i0 + i1] = h15[j];
              w1327104_f32[n12 + 256 * i0 + i1] = h16[j];
              w1310720_f32[n13 + 256 * i0 + i1] = h17[j];
            }
          }
        }
      }
    }
    ck_arrive(unit);
    ck_wait(unit);
    for (i32 v145 = unit->index; v145 < 4; v145 += unit->count) {
      const f32* const d197 = w0_f32 + ck_clamp_index(i64(v145), 3) * 65536;
      {
        const i64 t40 = i64(v145) * i64(64LL);
        v150 = t40;
      }
      const f32* const d153 = w1048576_f32 + ck_clamp_index(v142, 3) * 16384 + ck_clamp_index(v150, 192) * 1;
      const f32* const d155 = w1327104_f32 + ck_clamp_index(v150, 192) * 1;
      ck_block_barrier();
      {
        ck_dot_fixed<f32, f32, f32, 16, 256, 256, 256, 1, 256, 1, 256, 1, CkDotTiles<CK_DOT_FMA, 16, 64, 32, 4, 2, 1, 3>>(1, w1310720_f32, 0, d197, 0, o0_f32, 0);
      }
      ck_block_barrier();
      {
        const i32 n41 = ck_clamp_index(v142, 3);
        const i32 n42 = ck_clamp_index(v150, 192);
        const i32 n43 = ck_clamp_index(v150, 192);
        const i32 n44 = ck_clamp_index(v150, 192);
        {
          i32 at = ck_lane();
          for (; at < 896; at += 256) {
            f32 h45[2];
            f32 h46[2];
            f32 h47[2];
            f32 h48[2];
            #pragma unroll
            for (i32 j = 0; j < 2; ++j) {
              const i32 l = at + 128 * j;
              const i32 i1 = l % 64;
              const i32 i0 = l / 64;
              const f32 t49 = d153[1024 * i0 + i1 + 768];
              const f32 t50 = o0_f32[256 * i0 + i1 + 192];
              const f32 t51 = t49 + t50;
              const f32 t52 = ck_logistic(t51);
              const f32 t53 = d153[1024 * i0 + i1 + 256];
              const f32 t54 = o0_f32[256 * i0 + i1 + 64];
              const f32 t55 = t53 + t54;
              const f32 t56 = ck_logistic(t55);
              const f32 t57 = d155[256 * i0 + i1];
              const f32 t58 = t56 * t57;
              const f32 t59 = d153[1024 * i0 + i1];
              const f32 t60 = o0_f32[256 * i0 + i1];
              const f32 t61 = t59 + t60;
              const f32 t62 = ck_logistic(t61);
              const f32 t63 = d153[1024 * i0 + i1 + 512];
              const f32 t64 = o0_f32[256 * i0 + i1 + 128];
              const f32 t65 = t63 + t64;
              const f32 t66 = ck_tanh(t65);
              const f32 t67 = t62 * t66;
              const f32 t68 = t58 + t67;
              const f32 t69 = ck_tanh(t68);
              const f32 t70 = t52 * t69;
              h45[j] = t70;
              h46[j] = t70;
              h47[j] = t68;
              h48[j] = t70;
            }
            #pragma unroll
            for (i32 j = 0; j < 2; ++j) {
              const i32 l = at + 128 * j;
              const i32 i1 = l % 64;
              const i32 i0 = l / 64;
              o16384_f32[64 * i0 + i1] = h45[j];
              r0[4096 * n41 + n42 + 256 * i0 + i1] = h46[j];
              w1327104_f32[n43 + 256 * i0 + i1] = h47[j];
              r1[n44 + 256 * i0 + i1] = h48[j];
            }
          }
        }
      }
    }
  }
}
CK_ENTRIES
