// jax_cocktail program
#include "cocktail_base.h"
#include "cocktail_index.h"
#include "cocktail_arith.h"
#include "cocktail_math.h"
#include "cocktail_dot.h"
#include "cocktail_units.h"
CK_EXPORT const i64 ck_most_units, ck_own_bytes;
const i64 ck_most_units = 2, ck_own_bytes = 2304;

CK_EXPORT int ck_program(const void* const* operands, void* const* results,
                         u8* workspace, CkUnit* unit) {
  f32* const o0_f32 = (f32*)(unit->own + 0);
  f32* const o1024_f32 = (f32*)(unit->own + 1024);
  f32* const o2048_f32 = (f32*)(unit->own + 2048);
  f32* const o256_f32 = (f32*)(unit->own + 256);
  const f32* const p0 = (const f32*)(operands[0]);
  const f32* const p1 = (const f32*)(operands[1]);
  const f32* const p2 = (const f32*)(operands[2]);
  const f32* const p3 = (const f32*)(operands[3]);
  const f32* const p4 = (const f32*)(operands[4]);
  const f32* const p5 = (const f32*)(operands[5]);
  const f32* const p6 = (const f32*)(operands[6]);
  f32* const r0 = (f32*)(results[0]);
  f32* const r1 = (f32*)(results[1]);
  f32* const r2 = (f32*)(results[2]);
  f32* const r3 = (f32*)(results[3]);
  f32* const w0_f32 = (f32*)(workspace + 0);
  f32* const w10240_f32 = (f32*)(workspace + 10240);
  f32* const w10752_f32 = (f32*)(workspace + 10752);
  f32* const w8192_f32 = (f32*)(workspace + 8192);
  f32* const w8704_f32 = (f32*)(workspace + 8704);
  f32* const w9216_f32 = (f32*)(workspace + 9216);
  f32* const w9728_f32 = (f32*)(workspace + 9728);
  i64 v158;
  i64 v304;
  i64 v319;
  i64 v339;
  i64 v345;
  i64 v355;
  i64 v356;
  bool v357;
  i32 v358;
  i64 v364;
  i64 v369;
  i64 v401;
  i64 v402;
  bool v403;
  i32 v404;
  i64 v410;
  i64 v415;
  i64 v447;
  i64 v448;
  bool v449;
  i32 v450;
  i64 v457;
  i64 v464;
  i64 v500;
  i64 v503;
  i64 v504;
  bool v505;
  i32 v506;
  i64 v512;
  i64 v517;
  i64 v549;
  i64 v550;
  bool v551;
  i32 v552;
  i64 v558;
  i64 v563;
  i64 v595;
  i64 v596;
  bool v597;
  i32 v598;
  i64 v605;
  i64 v612;
  for (i64 v154 = unit->index; v154 < 2; v154 += unit->count) {
    {
      const i64 t1 = v154 * i64(64LL);
      v158 = t1;
    }
    const f32* const d160 = p1 + ck_clamp_index(v158, 64) * 1;
    {
      const i64 n2 = ck_clamp_index(v158, 64);
      for (i64 i0 = 0; i0 < 4; ++i0) {
        ck_dot_fixed<f32, f32, f32, 4, 64, 128, 128, 1, 512, 1, 512, 1>(1, p0, 0, d160 + 128 * i0, 0, (w0_f32 + n2) + 128 * i0, 0);
      }
    }
  }
  for (i64 v294 = unit->index; v294 < 2; v294 += unit->count) {
    {
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        o0_f32[i0] = 0.0f;
      }
    }
    {
      const i64 t3 = v294 * i64(64LL);
      v304 = t3;
    }
    {
      __builtin_memcpy(o256_f32, o0_f32, 256);
    }
    {
      const i64 n4 = ck_clamp_index(v304, 64);
      const i64 n5 = ck_clamp_index(v304, 64);
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        const f32 t6 = o256_f32[i0];
        r1[n4 + i0] = t6;
        w8192_f32[n5 + i0] = t6;
      }
    }
  }
  for (i64 v309 = unit->index; v309 < 2; v309 += unit->count) {
    {
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        o0_f32[i0] = 0.0f;
      }
    }
    {
      const i64 t7 = v309 * i64(64LL);
      v319 = t7;
    }
    {
      __builtin_memcpy(o256_f32, o0_f32, 256);
    }
    {
      const i64 n8 = ck_clamp_index(v319, 64);
      const i64 n9 = ck_clamp_index(v319, 64);
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        const f32 t10 = o256_f32[i0];
        r2[n8 + i0] = t10;
        w8704_f32[n9 + i0] = t10;
      }
    }
  }
  for (i64 v325 = unit->index; v325 < 2; v325 += unit->count) {
    {
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        o1024_f32[i0] = 0.0f;
      }
    }
    {
      CK_LANES
      for (i64 i1 = 0; i1 < 256; ++i1) {
        o0_f32[i1] = 0.0f;
      }
    }
    {
      const i64 t11 = v325 * i64(64LL);
      v339 = t11;
    }
    {
      __builtin_memcpy(o2048_f32, o1024_f32, 256);
    }
    {
      __builtin_memcpy(o1024_f32, o0_f32, 1024);
    }
    {
      const i64 n12 = ck_clamp_index(v339, 64);
      const i64 n13 = ck_clamp_index(v339, 64);
      CK_LANES
      for (i64 i0 = 0; i0 < 64; ++i0) {
        const f32 t14 = o2048_f32[i0];
        r3[n12 + i0] = t14;
        w9216_f32[n13 + i0] = t14;
      }
    }
    {
      const i64 n15 = ck_clamp_index(v339, 64);
      for (i64 i0 = 0; i0 < 4; ++i0) {
        CK_LANES
        for (i64 i1 = 0; i1 < 64; ++i1) {
          const f32 t16 = o1024_f32[64 * i0 + i1];
          r0[n15 + 128 * i0 + i1] = t16;
        }
      }
    }
  }
  for (i64 v343 = 0; v343 < 3; ++v343) {
    ck_arrive(unit);
    {
      const i64 t17 = v343 * i64(2LL);
      v345 = t17;
    }
    {
      const i64 t18 = v345 - i64(0LL);
      v355 = t18;
      const i64 t19 = ck_clamp(i64(0LL), v355, i64(3LL));
      v356 = t19;
      const bool t20 = v355 == v356;
      v357 = t20;
      const i32 t21 = ck_convert<i32>(v357);
      v358 = t21;
    }
    if (ck_wait(unit)) return 0;
    for (i64 v360 = unit->index; v360 < 2; v360 += unit->count) {
      if (v358 <= 0) {
        {
          const i64 t22 = v360 * i64(64LL);
          v364 = t22;
        }
        const f32* const d366 = r1 + ck_clamp_index(v364, 64) * 1;
        {
          const i64 n23 = ck_clamp_index(v364, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t24 = d366[i0];
            w9728_f32[n23 + i0] = t24;
          }
        }
      }
      else {
        {
          const i64 t25 = v360 * i64(64LL);
          v369 = t25;
        }
        const f32* const d371 = p2 + ck_clamp_index(v369, 64) * 1;
        const f32* const d372 = w8192_f32 + ck_clamp_index(v369, 64) * 1;
        const f32* const d373 = w0_f32 + ck_clamp_index(v356, 3) * 512 + ck_clamp_index(v369, 64) * 1;
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, r1, 0, d371 + 128 * i0, 0, o0_f32 + 64 * i0, 0);
          }
        }
        {
          const i64 n26 = ck_clamp_index(v369, 64);
          const i64 n27 = ck_clamp_index(v369, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t28 = d373[i0 + 384];
            const f32 t29 = o0_f32[i0 + 192];
            const f32 t30 = t28 + t29;
            const f32 t31 = ck_logistic(t30);
            const f32 t32 = d373[i0 + 128];
            const f32 t33 = o0_f32[i0 + 64];
            const f32 t34 = t32 + t33;
            const f32 t35 = ck_logistic(t34);
            const f32 t36 = d372[i0];
            const f32 t37 = t35 * t36;
            const f32 t38 = d373[i0];
            const f32 t39 = o0_f32[i0];
            const f32 t40 = t38 + t39;
            const f32 t41 = ck_logistic(t40);
            const f32 t42 = d373[i0 + 256];
            const f32 t43 = o0_f32[i0 + 128];
            const f32 t44 = t42 + t43;
            const f32 t45 = ck_tanh(t44);
            const f32 t46 = t41 * t45;
            const f32 t47 = t37 + t46;
            const f32 t48 = ck_tanh(t47);
            const f32 t49 = t31 * t48;
            w9728_f32[n26 + i0] = t49;
            w8192_f32[n27 + i0] = t47;
          }
        }
      }
    }
    {
      const i64 t50 = v345 - i64(1LL);
      v401 = t50;
      const i64 t51 = ck_clamp(i64(0LL), v401, i64(3LL));
      v402 = t51;
      const bool t52 = v401 == v402;
      v403 = t52;
      const i32 t53 = ck_convert<i32>(v403);
      v404 = t53;
      const i64 t54 = v345 - i64(2LL);
      v447 = t54;
      const i64 t55 = ck_clamp(i64(0LL), v447, i64(3LL));
      v448 = t55;
      const bool t56 = v447 == v448;
      v449 = t56;
      const i32 t57 = ck_convert<i32>(v449);
      v450 = t57;
      const i64 t58 = v345 + i64(1LL);
      v500 = t58;
      const i64 t59 = v500 - i64(0LL);
      v503 = t59;
      const i64 t60 = ck_clamp(i64(0LL), v503, i64(3LL));
      v504 = t60;
      const bool t61 = v503 == v504;
      v505 = t61;
      const i32 t62 = ck_convert<i32>(v505);
      v506 = t62;
      const i64 t63 = v500 - i64(1LL);
      v549 = t63;
      const i64 t64 = ck_clamp(i64(0LL), v549, i64(3LL));
      v550 = t64;
      const bool t65 = v549 == v550;
      v551 = t65;
      const i32 t66 = ck_convert<i32>(v551);
      v552 = t66;
      const i64 t67 = v500 - i64(2LL);
      v595 = t67;
      const i64 t68 = ck_clamp(i64(0LL), v595, i64(3LL));
      v596 = t68;
      const bool t69 = v595 == v596;
      v597 = t69;
      const i32 t70 = ck_convert<i32>(v597);
      v598 = t70;
    }
    for (i64 v406 = unit->index; v406 < 2; v406 += unit->count) {
      if (v404 <= 0) {
        {
          const i64 t71 = v406 * i64(64LL);
          v410 = t71;
        }
        const f32* const d412 = r2 + ck_clamp_index(v410, 64) * 1;
        {
          const i64 n72 = ck_clamp_index(v410, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t73 = d412[i0];
            w10240_f32[n72 + i0] = t73;
          }
        }
      }
      else {
        {
          const i64 t74 = v406 * i64(64LL);
          v415 = t74;
        }
        const f32* const d417 = p3 + ck_clamp_index(v415, 64) * 1;
        const f32* const d418 = p4 + ck_clamp_index(v415, 64) * 1;
        const f32* const d419 = w8704_f32 + ck_clamp_index(v415, 64) * 1;
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, r1, 0, d417 + 128 * i0, 0, o0_f32 + 64 * i0, 0);
          }
        }
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, r2, 0, d418 + 128 * i0, 0, o1024_f32 + 64 * i0, 0);
          }
        }
        {
          const i64 n75 = ck_clamp_index(v415, 64);
          const i64 n76 = ck_clamp_index(v415, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t77 = o0_f32[i0 + 192];
            const f32 t78 = o1024_f32[i0 + 192];
            const f32 t79 = t77 + t78;
            const f32 t80 = ck_logistic(t79);
            const f32 t81 = o0_f32[i0 + 64];
            const f32 t82 = o1024_f32[i0 + 64];
            const f32 t83 = t81 + t82;
            const f32 t84 = ck_logistic(t83);
            const f32 t85 = d419[i0];
            const f32 t86 = t84 * t85;
            const f32 t87 = o0_f32[i0];
            const f32 t88 = o1024_f32[i0];
            const f32 t89 = t87 + t88;
            const f32 t90 = ck_logistic(t89);
            const f32 t91 = o0_f32[i0 + 128];
            const f32 t92 = o1024_f32[i0 + 128];
            const f32 t93 = t91 + t92;
            const f32 t94 = ck_tanh(t93);
            const f32 t95 = t90 * t94;
            const f32 t96 = t86 + t95;
            const f32 t97 = ck_tanh(t96);
            const f32 t98 = t80 * t97;
            w10240_f32[n75 + i0] = t98;
            w8704_f32[n76 + i0] = t96;
          }
        }
      }
    }
    for (i64 v452 = unit->index; v452 < 2; v452 += unit->count) {
      if (v450 <= 0) {
        {
          const i64 t99 = v452 * i64(64LL);
          v457 = t99;
        }
        const f32* const d459 = r3 + ck_clamp_index(v457, 64) * 1;
        {
          const i64 n100 = ck_clamp_index(v448, 3);
          const i64 n101 = ck_clamp_index(v457, 64);
          const i64 n102 = ck_clamp_index(v457, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t103 = d459[i0];
            const f32 t104 = d459[i0];
            r0[128 * n100 + n101 + i0] = t103;
            w10752_f32[n102 + i0] = t104;
          }
        }
      }
      else {
        {
          const i64 t105 = v452 * i64(64LL);
          v464 = t105;
        }
        const f32* const d466 = p5 + ck_clamp_index(v464, 64) * 1;
        const f32* const d467 = p6 + ck_clamp_index(v464, 64) * 1;
        const f32* const d468 = w9216_f32 + ck_clamp_index(v464, 64) * 1;
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, r2, 0, d466 + 128 * i0, 0, o0_f32 + 64 * i0, 0);
          }
        }
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, r3, 0, d467 + 128 * i0, 0, o1024_f32 + 64 * i0, 0);
          }
        }
        {
          const i64 n106 = ck_clamp_index(v448, 3);
          const i64 n107 = ck_clamp_index(v464, 64);
          const i64 n108 = ck_clamp_index(v464, 64);
          const i64 n109 = ck_clamp_index(v464, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t110 = o0_f32[i0 + 192];
            const f32 t111 = o1024_f32[i0 + 192];
            const f32 t112 = t110 + t111;
            const f32 t113 = ck_logistic(t112);
            const f32 t114 = o0_f32[i0 + 64];
            const f32 t115 = o1024_f32[i0 + 64];
            const f32 t116 = t114 + t115;
            const f32 t117 = ck_logistic(t116);
            const f32 t118 = d468[i0];
            const f32 t119 = t117 * t118;
            const f32 t120 = o0_f32[i0];
            const f32 t121 = o1024_f32[i0];
            const f32 t122 = t120 + t121;
            const f32 t123 = ck_logistic(t122);
            const f32 t124 = o0_f32[i0 + 128];
            const f32 t125 = o1024_f32[i0 + 128];
            const f32 t126 = t124 + t125;
            const f32 t127 = ck_tanh(t126);
            const f32 t128 = t123 * t127;
            const f32 t129 = t119 + t128;
            const f32 t130 = ck_tanh(t129);
            const f32 t131 = t113 * t130;
            o2048_f32[i0] = t131;
            r0[128 * n106 + n107 + i0] = t131;
            w10752_f32[n108 + i0] = t131;
            w9216_f32[n109 + i0] = t129;
          }
        }
      }
    }
    ck_arrive(unit);
    if (ck_wait(unit)) return 0;
    for (i64 v508 = unit->index; v508 < 2; v508 += unit->count) {
      if (v506 <= 0) {
        {
          const i64 t132 = v508 * i64(64LL);
          v512 = t132;
        }
        const f32* const d514 = w9728_f32 + ck_clamp_index(v512, 64) * 1;
        {
          const i64 n133 = ck_clamp_index(v512, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t134 = d514[i0];
            r1[n133 + i0] = t134;
          }
        }
      }
      else {
        {
          const i64 t135 = v508 * i64(64LL);
          v517 = t135;
        }
        const f32* const d519 = p2 + ck_clamp_index(v517, 64) * 1;
        const f32* const d520 = w8192_f32 + ck_clamp_index(v517, 64) * 1;
        const f32* const d521 = w0_f32 + ck_clamp_index(v504, 3) * 512 + ck_clamp_index(v517, 64) * 1;
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, w9728_f32, 0, d519 + 128 * i0, 0, o0_f32 + 64 * i0, 0);
          }
        }
        {
          const i64 n136 = ck_clamp_index(v517, 64);
          const i64 n137 = ck_clamp_index(v517, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t138 = d521[i0 + 384];
            const f32 t139 = o0_f32[i0 + 192];
            const f32 t140 = t138 + t139;
            const f32 t141 = ck_logistic(t140);
            const f32 t142 = d521[i0 + 128];
            const f32 t143 = o0_f32[i0 + 64];
            const f32 t144 = t142 + t143;
            const f32 t145 = ck_logistic(t144);
            const f32 t146 = d520[i0];
            const f32 t147 = t145 * t146;
            const f32 t148 = d521[i0];
            const f32 t149 = o0_f32[i0];
            const f32 t150 = t148 + t149;
            const f32 t151 = ck_logistic(t150);
            const f32 t152 = d521[i0 + 256];
            const f32 t153 = o0_f32[i0 + 128];
            const f32 t154 = t152 + t153;
            const f32 t155 = ck_tanh(t154);
            const f32 t156 = t151 * t155;
            const f32 t157 = t147 + t156;
            const f32 t158 = ck_tanh(t157);
            const f32 t159 = t141 * t158;
            r1[n136 + i0] = t159;
            w8192_f32[n137 + i0] = t157;
          }
        }
      }
    }
    for (i64 v554 = unit->index; v554 < 2; v554 += unit->count) {
      if (v552 <= 0) {
        {
          const i64 t160 = v554 * i64(64LL);
          v558 = t160;
        }
        const f32* const d560 = w10240_f32 + ck_clamp_index(v558, 64) * 1;
        {
          const i64 n161 = ck_clamp_index(v558, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t162 = d560[i0];
            r2[n161 + i0] = t162;
          }
        }
      }
      else {
        {
          const i64 t163 = v554 * i64(64LL);
          v563 = t163;
        }
        const f32* const d565 = p3 + ck_clamp_index(v563, 64) * 1;
        const f32* const d566 = p4 + ck_clamp_index(v563, 64) * 1;
        const f32* const d567 = w8704_f32 + ck_clamp_index(v563, 64) * 1;
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, w9728_f32, 0, d565 + 128 * i0, 0, o0_f32 + 64 * i0, 0);
          }
        }
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, w10240_f32, 0, d566 + 128 * i0, 0, o1024_f32 + 64 * i0, 0);
          }
        }
        {
          const i64 n164 = ck_clamp_index(v563, 64);
          const i64 n165 = ck_clamp_index(v563, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t166 = o0_f32[i0 + 192];
            const f32 t167 = o1024_f32[i0 + 192];
            const f32 t168 = t166 + t167;
            const f32 t169 = ck_logistic(t168);
            const f32 t170 = o0_f32[i0 + 64];
            const f32 t171 = o1024_f32[i0 + 64];
            const f32 t172 = t170 + t171;
            const f32 t173 = ck_logistic(t172);
            const f32 t174 = d567[i0];
            const f32 t175 = t173 * t174;
            const f32 t176 = o0_f32[i0];
            const f32 t177 = o1024_f32[i0];
            const f32 t178 = t176 + t177;
            const f32 t179 = ck_logistic(t178);
            const f32 t180 = o0_f32[i0 + 128];
            const f32 t181 = o1024_f32[i0 + 128];
            const f32 t182 = t180 + t181;
            const f32 t183 = ck_tanh(t182);
            const f32 t184 = t179 * t183;
            const f32 t185 = t175 + t184;
            const f32 t186 = ck_tanh(t185);
            const f32 t187 = t169 * t186;
            r2[n164 + i0] = t187;
            w8704_f32[n165 + i0] = t185;
          }
        }
      }
    }
    for (i64 v600 = unit->index; v600 < 2; v600 += unit->count) {
      if (v598 <= 0) {
        {
          const i64 t188 = v600 * i64(64LL);
          v605 = t188;
        }
        const f32* const d607 = w10752_f32 + ck_clamp_index(v605, 64) * 1;
        {
          const i64 n189 = ck_clamp_index(v596, 3);
          const i64 n190 = ck_clamp_index(v605, 64);
          const i64 n191 = ck_clamp_index(v605, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t192 = d607[i0];
            const f32 t193 = d607[i0];
            r0[128 * n189 + n190 + i0] = t192;
            r3[n191 + i0] = t193;
          }
        }
      }
      else {
        {
          const i64 t194 = v600 * i64(64LL);
          v612 = t194;
        }
        const f32* const d614 = p5 + ck_clamp_index(v612, 64) * 1;
        const f32* const d615 = p6 + ck_clamp_index(v612, 64) * 1;
        const f32* const d616 = w9216_f32 + ck_clamp_index(v612, 64) * 1;
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, w10240_f32, 0, d614 + 128 * i0, 0, o0_f32 + 64 * i0, 0);
          }
        }
        {
          for (i64 i0 = 0; i0 < 4; ++i0) {
            ck_dot_fixed<f32, f32, f32, 1, 64, 128, 0, 1, 512, 1, 0, 1>(1, w10752_f32, 0, d615 + 128 * i0, 0, o1024_f32 + 64 * i0, 0);
          }
        }
        {
          const i64 n195 = ck_clamp_index(v596, 3);
          const i64 n196 = ck_clamp_index(v612, 64);
          const i64 n197 = ck_clamp_index(v612, 64);
          const i64 n198 = ck_clamp_index(v612, 64);
          CK_LANES
          for (i64 i0 = 0; i0 < 64; ++i0) {
            const f32 t199 = o0_f32[i0 + 192];
            const f32 t200 = o1024_f32[i0 + 192];
            const f32 t201 = t199 + t200;
            const f32 t202 = ck_logistic(t201);
            const f32 t203 = o0_f32[i0 + 64];
            const f32 t204 = o1024_f32[i0 + 64];
            const f32 t205 = t203 + t204;
            const f32 t206 = ck_logistic(t205);
            const f32 t207 = d616[i0];
            const f32 t208 = t206 * t207;
            const f32 t209 = o0_f32[i0];
            const f32 t210 = o1024_f32[i0];
            const f32 t211 = t209 + t210;
            const f32 t212 = ck_logistic(t211);
            const f32 t213 = o0_f32[i0 + 128];
            const f32 t214 = o1024_f32[i0 + 128];
            const f32 t215 = t213 + t214;
            const f32 t216 = ck_tanh(t215);
            const f32 t217 = t212 * t216;
            const f32 t218 = t208 + t217;
            const f32 t219 = ck_tanh(t218);
            const f32 t220 = t202 * t219;
            o2048_f32[i0] = t220;
            r0[128 * n195 + n196 + i0] = t220;
            r3[n197 + i0] = t220;
            w9216_f32[n198 + i0] = t218;
          }
        }
      }
    }
  }
  return 0;
}
