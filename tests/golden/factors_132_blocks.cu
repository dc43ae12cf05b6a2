// jax_cocktail program
#define CK_THREADS 128
#define CK_SCRATCH_BYTES 8192
#define CK_OPERANDS 2
#define CK_RESULTS 1
#define CK_MOST_UNITS 132
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
  const f32* const p0 = (const f32*)(operands[0]);
  const f32* const p1 = (const f32*)(operands[1]);
  f32* const r0 = (f32*)(results[0]);
  f32 v102;
  f32 v105;
  f32 v108;
  i32 v113;
  i32 v116;
  f32 v117;
  f32 v118;
  f32 v119;
  f32 v120;
  f32 v121;
  i32 v123;
  i32 v124;
  f32 v125;
  bool v132;
  i32 v133;
  i32 v136;
  i32 v137;
  i32 v138;
  f32 v139;
  f32 v140;
  i32 v142;
  f32 v143;
  i32 v145;
  f32 v146;
  f32 v147;
  i32 v148;
  i32 v149;
  f32 v150;
  f32 v151;
  f32 v152;
  f32 v153;
  i32 v154;
  bool v158;
  f32 v164;
  i32 v166;
  bool v169;
  i32 v172;
  i32 v173;
  f32 v174;
  f32 v175;
  bool v177;
  f32 v178;
  f32 v181;
  i32 v183;
  i32 v185;
  i32 v186;
  i32 v187;
  f32 v188;
  f32 v189;
  f32 v190;
  f32 v193;
  i32 v196;
  i32 v199;
  bool v202;
  bool v205;
  i32 v209;
  i32 v211;
  i32 v214;
  i32 v216;
  i32 v217;
  i32 v221;
  bool v224;
  f32 v25;
  i32 v254;
  i32 v255;
  f32 v256;
  f32 v257;
  i32 v258;
  i32 v259;
  f32 v26;
  f32 v260;
  f32 v261;
  f32 v262;
  f32 v263;
  i32 v266;
  i32 v267;
  i32 v268;
  f32 v269;
  f32 v270;
  f32 v271;
  f32 v272;
  f32 v273;
  f32 v274;
  f32 v275;
  i32 v277;
  f32 v28;
  bool v280;
  f32 v284;
  f32 v285;
  f32 v286;
  f32 v287;
  f32 v288;
  f32 v289;
  f32 v29;
  f32 v290;
  f32 v291;
  f32 v292;
  f32 v293;
  f32 v294;
  f32 v295;
  f32 v296;
  f32 v297;
  f32 v298;
  f32 v299;
  f32 v300;
  f32 v301;
  f32 v302;
  f32 v303;
  f32 v304;
  f32 v305;
  f32 v306;
  f32 v307;
  f32 v31;
  f32 v32;
  f32 v320;
  f32 v322;
  f32 v324;
  f32 v326;
  f32 v328;
  f32 v330;
  f32 v332;
  f32 v334;
  f32 v336;
  f32 v338;
  f32 v34;
  f32 v340;
  f32 v342;
  f32 v35;
  f32 v37;
  f32 v38;
  f32 v40;
  f32 v41;
  f32 v43;
  f32 v44;
  f32 v46;
  f32 v47;
  f32 v49;
  f32 v50;
  f32 v52;
  f32 v53;
  f32 v55;
  f32 v56;
  f32 v58;
  f32 v59;
  f32 v60;
  f32 v61;
  f32 v62;
  f32 v63;
  f32 v64;
  f32 v65;
  f32 v66;
  f32 v67;
  f32 v68;
  f32 v69;
  f32 v70;
  f32 v71;
  f32 v75;
  f32 v78;
  f32 v81;
  f32 v84;
  f32 v87;
  f32 v90;
  f32 v93;
  f32 v96;
  f32 v99;
  {
    alignas(16) u8 mine[624];
    for (i32 v11 = ck_first_trip(unit); v11 < 100000; v11 += ck_next_trip(unit)) {
      {
        const i32 n1 = ck_clamp_index(i64(v11), 99999);
        const i32 n2 = ck_clamp_index(i64(0LL), 11);
        const f32 t3 = p1[12 * n1 + n2];
        v25 = t3;
        v26 = v25;
        const i32 n4 = ck_clamp_index(i64(v11), 99999);
        const i32 n5 = ck_clamp_index(i64(1LL), 11);
        const f32 t6 = p1[12 * n4 + n5];
        v28 = t6;
        v29 = v28;
        const i32 n7 = ck_clamp_index(i64(v11), 99999);
        const i32 n8 = ck_clamp_index(i64(2LL), 11);
        const f32 t9 = p1[12 * n7 + n8];
        v31 = t9;
        v32 = v31;
        const i32 n10 = ck_clamp_index(i64(v11), 99999);
        const i32 n11 = ck_clamp_index(i64(3LL), 11);
        const f32 t12 = p1[12 * n10 + n11];
        v34 = t12;
        v35 = v34;
        const i32 n13 = ck_clamp_index(i64(v11), 99999);
        const i32 n14 = ck_clamp_index(i64(4LL), 11);
        const f32 t15 = p1[12 * n13 + n14];
        v37 = t15;
        v38 = v37;
        const i32 n16 = ck_clamp_index(i64(v11), 99999);
        const i32 n17 = ck_clamp_index(i64(5LL), 11);
        const f32 t18 = p1[12 * n16 + n17];
        v40 = t18;
        v41 = v40;
        const i32 n19 = ck_clamp_index(i64(v11), 99999);
        const i32 n20 = ck_clamp_index(i64(6LL), 11);
        const f32 t21 = p1[12 * n19 + n20];
        v43 = t21;
        v44 = v43;
        const i32 n22 = ck_clamp_index(i64(v11), 99999);
        const i32 n23 = ck_clamp_index(i64(7LL), 11);
        const f32 t24 = p1[12 * n22 + n23];
        v46 = t24;
        v47 = v46;
        const i32 n25 = ck_clamp_index(i64(v11), 99999);
        const i32 n26 = ck_clamp_index(i64(8LL), 11);
        const f32 t27 = p1[12 * n25 + n26];
        v49 = t27;
        v50 = v49;
        const i32 n28 = ck_clamp_index(i64(v11), 99999);
        const i32 n29 = ck_clamp_index(i64(9LL), 11);
        const f32 t30 = p1[12 * n28 + n29];
        v52 = t30;
        v53 = v52;
        const i32 n31 = ck_clamp_index(i64(v11), 99999);
        const i32 n32 = ck_clamp_index(i64(10LL), 11);
        const f32 t33 = p1[12 * n31 + n32];
        v55 = t33;
        v56 = v55;
        const i32 n34 = ck_clamp_index(i64(v11), 99999);
        const i32 n35 = ck_clamp_index(i64(11LL), 11);
        const f32 t36 = p1[12 * n34 + n35];
        v58 = t36;
        v59 = v58;
      }
      v60 = v26;
      v61 = v29;
      v62 = v32;
      v63 = v35;
      v64 = v38;
      v65 = v41;
      v66 = v44;
      v67 = v47;
      v68 = v50;
      v69 = v53;
      v70 = v56;
      v71 = v59;
      #pragma unroll 1
      for (i32 v72 = 0; v72 < 3; ++v72) {
        {
          v75 = v60;
          const i32 n37 = ck_clamp_index(i32(0), 11);
          ((f32*)(mine + 576))[n37] = v75;
          v78 = v61;
        }
        {
          const i32 n38 = ck_clamp_index(i32(1), 11);
          ((f32*)(mine + 576))[n38] = v78;
          v81 = v62;
        }
        {
          const i32 n39 = ck_clamp_index(i32(2), 11);
          ((f32*)(mine + 576))[n39] = v81;
          v84 = v63;
        }
        {
          const i32 n40 = ck_clamp_index(i32(3), 11);
          ((f32*)(mine + 576))[n40] = v84;
          v87 = v64;
        }
        {
          const i32 n41 = ck_clamp_index(i32(4), 11);
          ((f32*)(mine + 576))[n41] = v87;
          v90 = v65;
        }
        {
          const i32 n42 = ck_clamp_index(i32(5), 11);
          ((f32*)(mine + 576))[n42] = v90;
          v93 = v66;
        }
        {
          const i32 n43 = ck_clamp_index(i32(6), 11);
          ((f32*)(mine + 576))[n43] = v93;
          v96 = v67;
        }
        {
          const i32 n44 = ck_clamp_index(i32(7), 11);
          ((f32*)(mine + 576))[n44] = v96;
          v99 = v68;
        }
        {
          const i32 n45 = ck_clamp_index(i32(8), 11);
          ((f32*)(mine + 576))[n45] = v99;
          v102 = v69;
        }
        {
          const i32 n46 = ck_clamp_index(i32(9), 11);
          ((f32*)(mine + 576))[n46] = v102;
          v105 = v70;
        }
        {
          const i32 n47 = ck_clamp_index(i32(10), 11);
          ((f32*)(mine + 576))[n47] = v105;
          v108 = v71;
        }
        {
          const i32 n48 = ck_clamp_index(i32(11), 11);
          ((f32*)(mine + 576))[n48] = v108;
        }
        #pragma unroll 1
        for (i32 v111 = 0; v111 < 12; ++v111) {
          {
            const i32 t49 = ck_convert<i32>(i64(v111));
            v113 = t49;
          }
          {
            const i32 n50 = ck_clamp_index(v113, 11);
            const f32 t51 = ((f32*)(mine + 576))[n50];
            v119 = t51;
          }
          #pragma unroll 8
          for (i32 v114 = 0; v114 < 12; ++v114) {
            {
              const i32 t52 = ck_convert<i32>(i64(v114));
              v116 = t52;
            }
            {
              const i32 n53 = ck_clamp_index(i64(v11), 99999);
              const i32 n54 = ck_clamp_index(v113, 11);
              const i32 n55 = ck_clamp_index(v116, 11);
              const f32 t56 = p0[144 * n53 + 12 * n54 + n55];
              v117 = t56;
              v118 = v117;
              v120 = v119;
              const f32 t57 = v118 * v120;
              v121 = t57;
              const i32 t58 = v113 * i32(12);
              v123 = t58;
              const i32 t59 = v123 + v116;
              v124 = t59;
              v125 = v121;
            }
            {
              const i32 n60 = ck_clamp_index(v124, 143);
              ((f32*)(mine + 0))[n60] = v125;
            }
          }
        }
        v132 = false;
        #pragma unroll 1
        for (i32 v130 = 0; v130 < 12; ++v130) {
          {
            const i32 t61 = ck_convert<i32>(i64(v130));
            v133 = t61;
            const i32 t62 = v133 * i32(12);
            v172 = t62;
            const i32 t63 = v172 + v133;
            v173 = t63;
          }
          v136 = v133;
          for (;;) {
            {
              const bool t64 = v136 < i32(12);
              v169 = t64;
            }
            if (!v169) break;
            {
              const i32 t65 = v136 * i32(12);
              v137 = t65;
              const i32 t66 = v137 + v133;
              v138 = t66;
            }
            {
              const i32 n67 = ck_clamp_index(v138, 143);
              const f32 t68 = ((f32*)(mine + 0))[n67];
              v139 = t68;
              v140 = v139;
            }
            v142 = i32(0);
            v143 = v140;
            for (;;) {
              {
                const bool t69 = v142 < v133;
                v158 = t69;
              }
              if (!v158) break;
              {
                const i32 t70 = v137 + v142;
                v145 = t70;
              }
              {
                const i32 n71 = ck_clamp_index(v145, 143);
                const f32 t72 = ((f32*)(mine + 0))[n71];
                v146 = t72;
                v147 = v146;
                const i32 t73 = v133 * i32(12);
                v148 = t73;
                const i32 t74 = v148 + v142;
                v149 = t74;
              }
              {
                const i32 n75 = ck_clamp_index(v149, 143);
                const f32 t76 = ((f32*)(mine + 0))[n75];
                v150 = t76;
                v151 = v150;
                const f32 t77 = v147 * v151;
                v152 = t77;
                const f32 t78 = v143 - v152;
                v153 = t78;
                const i32 t79 = v142 + i32(1);
                v154 = t79;
              }
              v142 = v154;
              v143 = v153;
            }
            {
              v164 = v143;
              const i32 n80 = ck_clamp_index(v138, 143);
              ((f32*)(mine + 0))[n80] = v164;
              const i32 t81 = v136 + i32(1);
              v166 = t81;
            }
            v136 = v166;
          }
          {
            const i32 n82 = ck_clamp_index(v173, 143);
            const f32 t83 = ((f32*)(mine + 0))[n82];
            v174 = t83;
            v175 = v174;
            const bool t84 = v175 <= 0.0f;
            v177 = t84;
            const f32 t85 = ck_sqrt(v175);
            v178 = t85;
            v181 = v178;
          }
          {
            const i32 n86 = ck_clamp_index(v173, 143);
            ((f32*)(mine + 0))[n86] = v181;
            const i32 t87 = v133 + i32(1);
            v183 = t87;
            const bool t88 = v132 | v177;
            v205 = t88;
          }
          v185 = v183;
          for (;;) {
            {
              const bool t89 = v185 < i32(12);
              v202 = t89;
            }
            if (!v202) break;
            {
              const i32 t90 = v185 * i32(12);
              v186 = t90;
              const i32 t91 = v186 + v133;
              v187 = t91;
            }
            {
              const i32 n92 = ck_clamp_index(v187, 143);
              const f32 t93 = ((f32*)(mine + 0))[n92];
              v188 = t93;
              v189 = v188;
              const f32 t94 = ck_div(v189, v178);
              v190 = t94;
              v193 = v190;
            }
            {
              const i32 n95 = ck_clamp_index(v187, 143);
              ((f32*)(mine + 0))[n95] = v193;
              const i32 t96 = v172 + v185;
              v196 = t96;
            }
            {
              const i32 n97 = ck_clamp_index(v196, 143);
              ((f32*)(mine + 0))[n97] = 0.0f;
              const i32 t98 = v185 + i32(1);
              v199 = t98;
            }
            v185 = v199;
          }
          v132 = v205;
        }
        {
          const i32 t99 = v132 ? i32(12) : i32(0);
          v209 = t99;
        }
        v211 = i32(0);
        for (;;) {
          {
            const bool t100 = v211 < v209;
            v224 = t100;
          }
          if (!v224) break;
          #pragma unroll 8
          for (i32 v212 = 0; v212 < 12; ++v212) {
            {
              const i32 t101 = ck_convert<i32>(i64(v212));
              v214 = t101;
              const i32 t102 = v211 * i32(12);
              v216 = t102;
              const i32 t103 = v216 + v214;
              v217 = t103;
            }
            {
              const i32 n104 = ck_clamp_index(v217, 143);
              ((f32*)(mine + 0))[n104] = __builtin_nanf("");
            }
          }
          {
            const i32 t105 = v211 + i32(1);
            v221 = t105;
          }
          v211 = v221;
        }
        {
          const i32 n106 = ck_clamp_index(i32(0), 11);
          ((f32*)(mine + 576))[n106] = v75;
        }
        {
          const i32 n107 = ck_clamp_index(i32(1), 11);
          ((f32*)(mine + 576))[n107] = v78;
        }
        {
          const i32 n108 = ck_clamp_index(i32(2), 11);
          ((f32*)(mine + 576))[n108] = v81;
        }
        {
          const i32 n109 = ck_clamp_index(i32(3), 11);
          ((f32*)(mine + 576))[n109] = v84;
        }
        {
          const i32 n110 = ck_clamp_index(i32(4), 11);
          ((f32*)(mine + 576))[n110] = v87;
        }
        {
          const i32 n111 = ck_clamp_index(i32(5), 11);
          ((f32*)(mine + 576))[n111] = v90;
        }
        {
          const i32 n112 = ck_clamp_index(i32(6), 11);
          ((f32*)(mine + 576))[n112] = v93;
        }
        {
          const i32 n113 = ck_clamp_index(i32(7), 11);
          ((f32*)(mine + 576))[n113] = v96;
        }
        {
          const i32 n114 = ck_clamp_index(i32(8), 11);
          ((f32*)(mine + 576))[n114] = v99;
        }
        {
          const i32 n115 = ck_clamp_index(i32(9), 11);
          ((f32*)(mine + 576))[n115] = v102;
        }
        {
          const i32 n116 = ck_clamp_index(i32(10), 11);
          ((f32*)(mine + 576))[n116] = v105;
        }
        {
          const i32 n117 = ck_clamp_index(i32(11), 11);
          ((f32*)(mine + 576))[n117] = v108;
        }
        #pragma unroll 1
        for (i32 v252 = 0; v252 < 12; ++v252) {
          {
            const i32 t118 = ck_convert<i32>(i64(v252));
            v254 = t118;
            const i32 t119 = v254 + i32(1);
            v255 = t119;
          }
          {
            const i32 n120 = ck_clamp_index(v254, 11);
            const f32 t121 = ((f32*)(mine + 576))[n120];
            v256 = t121;
            v257 = v256;
            const i32 t122 = v254 * i32(12);
            v258 = t122;
            const i32 t123 = v258 + v254;
            v259 = t123;
          }
          {
            const i32 n124 = ck_clamp_index(v259, 143);
            const f32 t125 = ((f32*)(mine + 0))[n124];
            v260 = t125;
            v261 = v260;
            const f32 t126 = ck_div(v257, v261);
            v262 = t126;
            v263 = v262;
            const i32 n127 = ck_clamp_index(v254, 11);
            ((f32*)(mine + 576))[n127] = v263;
          }
          v266 = v255;
          for (;;) {
            {
              const bool t128 = v266 < i32(12);
              v280 = t128;
            }
            if (!v280) break;
            {
              const i32 t129 = v266 * i32(12);
              v267 = t129;
              const i32 t130 = v267 + v254;
              v268 = t130;
            }
            {
              const i32 n131 = ck_clamp_index(v268, 143);
              const f32 t132 = ((f32*)(mine + 0))[n131];
              v269 = t132;
              v270 = v269;
              const i32 n133 = ck_clamp_index(v266, 11);
              const f32 t134 = ((f32*)(mine + 576))[n133];
              v271 = t134;
              v272 = v271;
              const f32 t135 = v270 * v262;
              v273 = t135;
              const f32 t136 = v272 - v273;
              v274 = t136;
              v275 = v274;
            }
            {
              const i32 n137 = ck_clamp_index(v266, 11);
              ((f32*)(mine + 576))[n137] = v275;
              const i32 t138 = v266 + i32(1);
              v277 = t138;
            }
            v266 = v277;
          }
        }
        {
          const f32 t139 = ((f32*)(mine + 576))[0];
          v284 = t139;
          v285 = v284;
          const f32 t140 = ((f32*)(mine + 576))[1];
          v286 = t140;
          v287 = v286;
          const f32 t141 = ((f32*)(mine + 576))[2];
          v288 = t141;
          v289 = v288;
          const f32 t142 = ((f32*)(mine + 576))[3];
          v290 = t142;
          v291 = v290;
          const f32 t143 = ((f32*)(mine + 576))[4];
          v292 = t143;
          v293 = v292;
          const f32 t144 = ((f32*)(mine + 576))[5];
          v294 = t144;
          v295 = v294;
          const f32 t145 = ((f32*)(mine + 576))[6];
          v296 = t145;
          v297 = v296;
          const f32 t146 = ((f32*)(mine + 576))[7];
          v298 = t146;
          v299 = v298;
          const f32 t147 = ((f32*)(mine + 576))[8];
          v300 = t147;
          v301 = v300;
          const f32 t148 = ((f32*)(mine + 576))[9];
          v302 = t148;
          v303 = v302;
          const f32 t149 = ((f32*)(mine + 576))[10];
          v304 = t149;
          v305 = v304;
          const f32 t150 = ((f32*)(mine + 576))[11];
          v306 = t150;
          v307 = v306;
        }
        v60 = v285;
        v61 = v287;
        v62 = v289;
        v63 = v291;
        v64 = v293;
        v65 = v295;
        v66 = v297;
        v67 = v299;
        v68 = v301;
        v69 = v303;
        v70 = v305;
        v71 = v307;
      }
      {
        v320 = v60;
        const i32 n151 = ck_clamp_index(i64(v11), 99999);
        const i32 n152 = ck_clamp_index(i64(0LL), 11);
        r0[12 * n151 + n152] = v320;
        v322 = v61;
      }
      {
        const i32 n153 = ck_clamp_index(i64(v11), 99999);
        const i32 n154 = ck_clamp_index(i64(1LL), 11);
        r0[12 * n153 + n154] = v322;
        v324 = v62;
      }
      {
        const i32 n155 = ck_clamp_index(i64(v11), 99999);
        const i32 n156 = ck_clamp_index(i64(2LL), 11);
        r0[12 * n155 + n156] = v324;
        v326 = v63;
      }
      {
        const i32 n157 = ck_clamp_index(i64(v11), 99999);
        const i32 n158 = ck_clamp_index(i64(3LL), 11);
        r0[12 * n157 + n158] = v326;
        v328 = v64;
      }
      {
        const i32 n159 = ck_clamp_index(i64(v11), 99999);
        const i32 n160 = ck_clamp_index(i64(4LL), 11);
        r0[12 * n159 + n160] = v328;
        v330 = v65;
      }
      {
        const i32 n161 = ck_clamp_index(i64(v11), 99999);
        const i32 n162 = ck_clamp_index(i64(5LL), 11);
        r0[12 * n161 + n162] = v330;
        v332 = v66;
      }
      {
        const i32 n163 = ck_clamp_index(i64(v11), 99999);
        const i32 n164 = ck_clamp_index(i64(6LL), 11);
        r0[12 * n163 + n164] = v332;
        v334 = v67;
      }
      {
        const i32 n165 = ck_clamp_index(i64(v11), 99999);
        const i32 n166 = ck_clamp_index(i64(7LL), 11);
        r0[12 * n165 + n166] = v334;
        v336 = v68;
      }
      {
        const i32 n167 = ck_clamp_index(i64(v11), 99999);
        const i32 n168 = ck_clamp_index(i64(8LL), 11);
        r0[12 * n167 + n168] = v336;
        v338 = v69;
      }
      {
        const i32 n169 = ck_clamp_index(i64(v11), 99999);
        const i32 n170 = ck_clamp_index(i64(9LL), 11);
        r0[12 * n169 + n170] = v338;
        v340 = v70;
      }
      {
        const i32 n171 = ck_clamp_index(i64(v11), 99999);
        const i32 n172 = ck_clamp_index(i64(10LL), 11);
        r0[12 * n171 + n172] = v340;
        v342 = v71;
      }
      {
        const i32 n173 = ck_clamp_index(i64(v11), 99999);
        const i32 n174 = ck_clamp_index(i64(11LL), 11);
        r0[12 * n173 + n174] = v342;
      }
    }
  }
}
CK_ENTRIES
