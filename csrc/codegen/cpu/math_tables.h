// Made by tools/fit_functions.py, which says how; not to be edited.
#pragma once

#include <array>
#include <cstdint>

namespace mlcc::codegen::cpu {

// A number for each of sixteen pieces of a function's range.
using MathTable = std::array<float, 16>;
using MathTable64 = std::array<double, 16>;

// 2^(i/16), and what rounding took from it
inline constexpr MathTable kRootsOfTwo = {
    {0x1p+0, 0x1.0b5586p+0, 0x1.172b84p+0, 0x1.2387a6p+0, 0x1.306fep+0, 0x1.3dea64p+0,
     0x1.4bfdaep+0, 0x1.5ab07ep+0, 0x1.6a09e6p+0, 0x1.7a1148p+0, 0x1.8ace54p+0, 0x1.9c4918p+0,
     0x1.ae89fap+0, 0x1.c199bep+0, 0x1.d5818ep+0, 0x1.ea4afap+0}};
inline constexpr MathTable kRootsOfTwoRest = {
    {0x0p+0, 0x1.9f3122p-25, -0x1.c15742p-27, 0x1.ceac48p-25, 0x1.4636e2p-25, 0x1.824684p-25,
     -0x1.593abcp-25, -0x1.5bd5ecp-27, 0x1.9fcef4p-26, -0x1.829fdp-25, 0x1.15506ep-27,
     0x1.51f848p-27, -0x1.a94b14p-26, -0x1.3d56b2p-27, -0x1.822dbcp-27, 0x1.52486cp-27}};

// erf(x)/x around i * 0.25: one table a power, the lowest first
inline constexpr MathTable kErf[] = {
    {{0x1.20dd76p+0, 0x1.1af54ep+0, 0x1.0a7ef6p+0, 0x1.e57b74p-1, 0x1.af767ap-1, 0x1.7a0518p-1,
      0x1.49c38ep-1, 0x1.20ac04p-1, 0x1.fd9ae2p-2, 0x1.c67206p-2, 0x1.996eeep-2, 0x1.74538p-2,
      0x1.555368p-2, 0x1.3b1358p-2, 0x1.24923ap-2, 0x1.11111p-2}},
    {{-0x1.3b567cp-17, -0x1.730704p-3, -0x1.4c3886p-2, -0x1.a0cdd8p-2, -0x1.b5db02p-2,
      -0x1.9b12ep-2, -0x1.667ed4p-2, -0x1.2b07a6p-2, -0x1.e87128p-3, -0x1.8d734cp-3, -0x1.45c32p-3,
      -0x1.0e5898p-3, -0x1.c6e934p-4, -0x1.83bf9ep-4, -0x1.4e5c5ap-4, -0x1.234528p-4}},
    {{-0x1.80b898p-2, -0x1.57654p-2, -0x1.d6df0ap-3, -0x1.9a7b7p-4, 0x1.99303ep-7, 0x1.5aa182p-4,
      0x1.d4dba2p-4, 0x1.d35744p-4, 0x1.93c7cp-4, 0x1.440b52p-4, 0x1.f75cdp-5, 0x1.846bcap-5,
      0x1.2e1b8p-5, 0x1.dcc642p-6, 0x1.7e1808p-6, 0x1.369cecp-6}},
    {{-0x1.fc8d8p-8, 0x1.acef7cp-4, 0x1.55d112p-3, 0x1.5acc4ap-3, 0x1.01cbp-3, 0x1.0fac7cp-4,
      0x1.0935fcp-6, -0x1.c0384ep-7, -0x1.9c8306p-6, -0x1.a1e0cp-6, -0x1.5bf62p-6, -0x1.0a042p-6,
      -0x1.8a2e42p-7, -0x1.2373e4p-7, -0x1.b3f38p-8, -0x1.4b2236p-8}},
    {{0x1.67934cp-3, 0x1.6a9c26p-4, 0x1.0aa78cp-5, -0x1.954cap-6, -0x1.cedfacp-5, -0x1.d82f3cp-5,
      -0x1.4cab9p-5, -0x1.4557cep-6, -0x1.2c1e6p-8, 0x1.5fb31cp-9, 0x1.4e72e4p-8, 0x1.37be1ep-8,
      0x1.f53914p-9, 0x1.51aeb6p-9, 0x1.bfe18p-10, 0x1.927b28p-10}},
    {{-0x1.81cce4p-3, -0x1.24a266p-5, -0x1.99acbcp-5, -0x1.3276d2p-5, -0x1.8d7552p-7, 0x1.14cdc8p-7,
      0x1.1a569p-6, 0x1.ec3c7ep-7, 0x1.1fabep-7, 0x1.cdbd7p-9, 0x1.993e04p-12, -0x1.a2587ap-11,
      -0x1.f3da9cp-11, -0x1.573d8p-11, -0x1.b23402p-12, -0x1.d08cfcp-12}},
};

// tanh(x)/x around i * 0.5625: one table a power, the lowest first
inline constexpr MathTable kTanh[] = {
    {{0x1p+0, 0x1.d00efep-1, 0x1.705268p-1, 0x1.1b5492p-1, 0x1.bd1c4ep-2, 0x1.6978dcp-2,
      0x1.2eb29ep-2, 0x1.03dda8p-2, 0x1.c6ffb2p-3, 0x1.9482c4p-3, 0x1.6c1454p-3, 0x1.4afcb2p-3,
      0x1.2f6816p-3, 0x1.18117p-3, 0x1.04103cp-3, 0x1.e573aap-4}},
    {{0x1.9973aap-28, -0x1.2eb938p-2, -0x1.54bd28p-2, -0x1.0225d4p-2, -0x1.641752p-3,
      -0x1.ed3c12p-4, -0x1.611504p-4, -0x1.0669p-4, -0x1.938b84p-5, -0x1.3f5aaap-5, -0x1.02d33cp-5,
      -0x1.abe5eep-6, -0x1.679466p-6, -0x1.326532p-6, -0x1.0830b2p-6, -0x1.cc478ep-7}},
    {{-0x1.55557ap-2, -0x1.2965fp-3, 0x1.85b9d8p-5, 0x1.41d944p-4, 0x1.de442cp-5, 0x1.3553a4p-5,
      0x1.8bd9b2p-6, 0x1.04450cp-6, 0x1.6316d8p-7, 0x1.f68eap-8, 0x1.6f8904p-8, 0x1.147b8cp-8,
      0x1.a9fef6p-9, 0x1.4f3e94p-9, 0x1.0c620cp-9, 0x1.b45d9ap-10}},
    {{0x1.1c2de4p-16, 0x1.4ae91ap-3, 0x1.cdaa9ap-5, -0x1.766ccp-8, -0x1.c7c3f2p-7, -0x1.4b1154p-7,
      -0x1.99170ep-8, -0x1.ef3898p-9, -0x1.320842p-9, -0x1.8790e6p-10, -0x1.03c35cp-10,
      -0x1.649206p-11, -0x1.f849fp-12, -0x1.6eb8e6p-12, -0x1.1088bcp-12, -0x1.9db04ep-13}},
    {{0x1.108dc4p-3, -0x1.d7143cp-7, -0x1.8325a8p-5, -0x1.6c7768p-7, 0x1.83dff4p-11, 0x1.035b2ap-9,
      0x1.68b024p-10, 0x1.aa8e28p-11, 0x1.06e452p-11, 0x1.354062p-12, 0x1.4efd58p-13,
      0x1.87965ap-14, 0x1.5f3bc2p-14, 0x1.177f36p-15, 0x1.06487ep-15, 0x1.cba8acp-16}},
    {{0x1.06296cp-9, -0x1.aa0122p-5, 0x1.bcfec8p-7, 0x1.0de6fap-7, 0x1.7aa672p-10, -0x1.a3c29cp-14,
      -0x1.e0d508p-13, -0x1.3080fp-13, -0x1.ab2e2ep-14, -0x1.bdc4f4p-15, -0x1.a4d9f8p-16,
      -0x1.99c0e6p-17, -0x1.b8a764p-17, -0x1.a58feep-20, -0x1.57a06ep-18, -0x1.d7974p-19}},
    {{-0x1.01999p-4, 0x1.94449ep-6, 0x1.569a9ep-8, -0x1.ba39c4p-9, -0x1.44012ap-10, -0x1.282a24p-13,
      0x1.4259e4p-13, 0x1.40d828p-13, -0x1.fd4bcp-14, -0x1.164da4p-14, 0x1.a7e126p-14,
      0x1.e45524p-14, -0x1.7bff3ap-14, 0x1.b80d74p-14, 0x1.b25938p-17, -0x1.e21fc8p-16}},
    {{0x1.5c18ap-6, 0x1.085d76p-7, -0x1.b3ffa6p-8, 0x1.389ep-11, 0x1.08dd36p-11, 0x1.cf5fap-14,
      -0x1.2c7ed8p-15, -0x1.be3d2cp-14, 0x1.0bd806p-14, 0x1.2ceadcp-17, -0x1.156134p-15,
      -0x1.3498f2p-15, 0x1.525a68p-16, -0x1.25c79ep-15, 0x1.863e9p-18, 0x1.708448p-18}},
};

// Pieces of [0.75, 1.5) by its bits: 1/middle, -log of it in two parts, -log2 of it
inline constexpr MathTable64 kPowInverse = {
    {0x1.4ep+0, 0x1.42p+0, 0x1.36p+0, 0x1.2ap+0, 0x1.2p+0, 0x1.16p+0, 0x1.0cp+0, 0x1p+0, 0x1p+0,
     0x1.d4p-1, 0x1.bcp-1, 0x1.a4p-1, 0x1.9p-1, 0x1.7cp-1, 0x1.6cp-1, 0x1.5cp-1}};
inline constexpr MathTable64 kPowLog = {{-0x1.1058bf9ae5p-2, -0x1.d5c216b4fcp-3, -0x1.87fa06520cp-3,
                                         -0x1.371fc201e8p-3, -0x1.e27076e2bp-4, -0x1.51b073f06p-4,
                                         -0x1.77458f633p-5, 0x0p+0, 0x0p+0, 0x1.700d30aeacp-4,
                                         0x1.23d712a49cp-3, 0x1.95a5adcf7p-3, 0x1.f991c6cb3cp-3,
                                         0x1.314f1e1d36p-2, 0x1.5d5bddf596p-2, 0x1.8b639a88b3p-2}};
inline constexpr MathTable64 kPowLogRest = {
    {0x1.4ab9d817d52cdp-44, 0x1.1ba91bbca681bp-45, -0x1.22120401202fcp-44, -0x1.ee8779b2d8abcp-44,
     0x1.a342c2af0003cp-45, -0x1.83f69278e686ap-44, 0x1.181dce586af09p-44, 0x0p+0, 0x0p+0,
     0x1.c1e8da99ded32p-49, 0x1.00d238fd3df5cp-46, 0x1.7f22858a0ff6fp-47, -0x1.90d04cd7cc834p-44,
     -0x1.8e27ad3213cb8p-45, -0x1.a0b2a08a465dcp-47, -0x1.05ae1e5e7047p-45}};
inline constexpr MathTable64 kPowLog2 = {
    {-0x1.88e9c72e0b226p-2, -0x1.52dbdfc4c96b3p-2, -0x1.1ac05b291f07p-2, -0x1.c0db6cdd94deep-3,
     -0x1.5c01a39fbd688p-3, -0x1.e72ec117fa5b2p-4, -0x1.0eb389fa29f9bp-4, 0x0p+0, 0x0p+0,
     0x1.097e38ce60649p-3, 0x1.a5094b54d2828p-3, 0x1.249cd2b13cd6cp-2, 0x1.6cb0f6865c8eap-2,
     0x1.b877c57b1b07p-2, 0x1.f804ae8d0cd02p-2, 0x1.1d368296b5255p-1}};

// Polynomials, the lowest power first

// (2^r - 1)/r
inline constexpr double kExp2F32[] = {0x1.62e43p-1, 0x1.ebff92p-3, 0x1.c6b29ap-5};

// (log(1 + f) - f + f^2/2)/f^3
inline constexpr double kLogF32[] = {0x1.555556p-2,  -0x1.000026p-2, 0x1.999a56p-3,
                                     -0x1.5536aap-3, 0x1.243704p-3,  -0x1.02da64p-3,
                                     0x1.de70d4p-4,  -0x1.87a1eap-4, 0x1.5f350ep-5};

// (sin(r) - r)/r^3 in r^2
inline constexpr double kSinF32[] = {-0x1.555552p-3, 0x1.110c28p-7, -0x1.9ac95cp-13};

// (cos(r) - 1 + r^2/2)/r^4 in r^2
inline constexpr double kCosF32[] = {0x1.555554p-5, -0x1.6c12d2p-10, 0x1.9bd858p-16};

// (asin(s) - s)/s^3 in s^2
inline constexpr double kAsinF32[] = {0x1.55555ep-3, 0x1.332732p-4, 0x1.70a6bcp-5, 0x1.b311d2p-6,
                                      0x1.37fe16p-5};

// (atan(t) - t)/t^3 in t^2
inline constexpr double kAtanF32[] = {-0x1.555554p-2, 0x1.99983cp-3,  -0x1.246cd2p-3,
                                      0x1.c3f168p-4,  -0x1.6295f8p-4, 0x1.0001c6p-4,
                                      -0x1.25dc12p-5, 0x1.ba9f66p-7,  -0x1.38de56p-9};

// (sinh(x) - x)/x^3 in x^2
inline constexpr double kSinhF32[] = {0x1.555556p-3, 0x1.11111ep-7, 0x1.a009p-13, 0x1.78a70ep-19};

// log2(1 + r)/r, to 38 bits
inline constexpr double kLog2F64[] = {
    0x1.71547652b9281p+0, -0x1.715476517892ep-1, 0x1.ec709cf95d8a8p-2, -0x1.71549789785cbp-2,
    0x1.277e1205d7515p-2, -0x1.ec0f36c73c26bp-3, 0x1.80f6e6e29867fp-3};

// (e^r - 1 - r)/r^2
inline constexpr double kExpF64[] = {
    0x1.0000000000001p-1,  0x1.5555555555556p-3,  0x1.5555555553d39p-5,  0x1.11111111109a6p-7,
    0x1.6c16c1789bff1p-10, 0x1.a01a01a7ce0cap-13, 0x1.a019b8ce7d6fdp-16, 0x1.71de0d87d4645p-19,
    0x1.2891cfd98b4c7p-22, 0x1.af390551fbc05p-26};

// the same to 29 bits
inline constexpr double kShortExpF64[] = {0x1.00000000005ddp-1, 0x1.5554dc9093cc7p-3,
                                          0x1.555518f8a6c4fp-5, 0x1.120bda62caf18p-7,
                                          0x1.6d1175e99013ep-10};

// (log((1 + s)/(1 - s)) - 2s)/s^3 in s^2
inline constexpr double kLogF64[] = {
    0x1.5555555555555p-1, 0x1.9999999999f3p-2,  0x1.24924923dba6ap-2, 0x1.c71c72e2f78d5p-3,
    0x1.745cab2727663p-3, 0x1.3b29fcbbce66dp-3, 0x1.0e88ea4725d3dp-3, 0x1.16b68338bd78bp-3};

// as kSinF32
inline constexpr double kSinF64[] = {-0x1.5555555555555p-3,  0x1.1111111110bb1p-7,
                                     -0x1.a01a019e8346p-13,  0x1.71de379607474p-19,
                                     -0x1.ae600a7a70c62p-26, 0x1.5e0ae8e372075p-33};

// as kCosF32
inline constexpr double kCosF64[] = {0x1.5555555555555p-5,  -0x1.6c16c16c16966p-10,
                                     0x1.a01a019f4e7d9p-16, -0x1.27e4fa179895fp-22,
                                     0x1.1eeb68a508535p-29, -0x1.907d724680d4ep-37};

// as kAsinF32
inline constexpr double kAsinF64[] = {
    0x1.5555555555556p-3, 0x1.3333333332ecap-4, 0x1.6db6db6e31f13p-5, 0x1.f1c71c1db0623p-6,
    0x1.6e8bb1c8209a2p-6, 0x1.1c4d35cf95421p-6, 0x1.c9cf07674736ap-7, 0x1.782651caa6547p-7,
    0x1.52420b04b37bep-7, 0x1.65a9c4dfcf8b2p-8, 0x1.1d189408314eep-6, -0x1.e6aaa8a0a04ccp-7,
    0x1.d72b2bc8155f8p-6};

// as kAtanF32, up to tan(pi/8)
inline constexpr double kAtanF64[] = {
    -0x1.5555555555555p-2, 0x1.9999999999341p-3, -0x1.24924924358fep-3, 0x1.c71c7184e2ef2p-4,
    -0x1.745d0b1a496d3p-4, 0x1.3b1261b89f53p-4,  -0x1.10fa65570f9fep-4, 0x1.dfe50abb518e4p-5,
    -0x1.a09318ec93cecp-5, 0x1.414ff0b841a9cp-5, -0x1.3a03a36923274p-6};

// as kSinhF32
inline constexpr double kSinhF64[] = {
    0x1.5555555555555p-3,  0x1.11111111110fdp-7,  0x1.a01a01a01ee7p-13, 0x1.71de3a4e14f4p-19,
    0x1.ae6460fae3728p-26, 0x1.611cb330c1fe8p-33, 0x1.b41232cf9950fp-41};

// (log(1 + r) - r + r^2/2)/r^3
inline constexpr double kPowLogF64[] = {
    0x1.5555555555555p-2, -0x1.0000000000007p-2, 0x1.999999999b131p-3, -0x1.5555555545e39p-3,
    0x1.2492490c50dffp-3, -0x1.fffffee6e7b5dp-4, 0x1.c71d74ba1108cp-4, -0x1.99aa99336a0c4p-4,
    0x1.72eb6eb058f59p-4, -0x1.292ae00482baep-4};

// erf(x)/x in 2 (x/3)^2 - 1
inline constexpr double kErfSmallF64[] = {
    0x1.e16a3caff3c6ep-2,  -0x1.d4943852775dbp-3,  0x1.428da06b8199bp-3,  -0x1.c2f218917ae44p-4,
    0x1.291aa45962b3ep-4,  -0x1.6755cf5ca8709p-5,  0x1.8b9a5ddd245a6p-6,  -0x1.8c51be37f8c63p-7,
    0x1.6a6e24422524dp-8,  -0x1.2fec07a6b1f1bp-9,  0x1.d5b34952f2728p-11, -0x1.50146ea2399edp-12,
    0x1.bf5fe815eb96fp-14, -0x1.16271cb72ce63p-15, 0x1.445af09923164p-17, -0x1.63f19f9cf2a98p-19,
    0x1.70bdd188e1b31p-21, -0x1.69bf64617a3bcp-23, 0x1.517ffdf17570cp-25, -0x1.2b0ad39fb17d7p-27,
    0x1.ed54e6fa87fcap-30, -0x1.9029cc330146ap-32, 0x1.80ece6092609cp-34, -0x1.198d88f9f4066p-36};

// erf(x) in (x - 4.5)/1.5
inline constexpr double kErfLargeF64[] = {
    0x1.fffffffe4fa3p-1,    0x1.756a7dc4d0019p-29, -0x1.3b11d447974cap-26, 0x1.59b3957d4d663p-24,
    -0x1.14eac1bd56cb6p-22, 0x1.58ab4c7a441fbp-21, -0x1.5a36c661beccap-20, 0x1.1fb05f0a74139p-19,
    -0x1.9204d854edc4fp-19, 0x1.dd28bced19f3p-19,  -0x1.e3527f519c016p-19, 0x1.a182180d61aaap-19,
    -0x1.310dfafa1bdfcp-19, 0x1.708283af43b74p-20, -0x1.5b71e5e5441f3p-21, 0x1.aef89aaeea421p-23,
    -0x1.a066e0017a966p-29, -0x1.9d12f50ae712p-25, 0x1.5c36c1f0ce492p-25,  -0x1.2ea5edab35cedp-26,
    0x1.9c5e1fba07a32p-31,  0x1.9905ed28cf8f3p-29, -0x1.179e9c6d65b4ap-30, 0x1.65839b2d27548p-35};

// erf(x)/x - 1 in x^2, up to 3/4
inline constexpr double kErfTinyF64[] = {
    0x1.06eba8214db66p-3,  -0x1.812746b03782p-2,   0x1.ce2f21a028a34p-4,  -0x1.b82ce3093b2fdp-6,
    0x1.565bcb5ede4b9p-8,  -0x1.c02d5a0211f09p-11, 0x1.f997b227f7e24p-14, -0x1.f3ea321aa6558p-17,
    0x1.aeb120d68c0cbp-20, -0x1.10fa781af6375p-23};

// e^(x^2) erfc(x) (x + c) in (x - c)/(x + c), c = 3.625, up to 27.3
inline constexpr double kErfcF64[] = {
    0x1.16f00ebd66bb7p+0,   -0x1.e5bc82540403dp-1,  0x1.6e8ea37088d8fp-1,   -0x1.da994c4191aep-2,
    0x1.0297fa9dda949p-2,   -0x1.c9b2caf6f85d3p-4,  0x1.3083d5ea5679dp-5,   -0x1.ddf1234c0208cp-8,
    -0x1.f2e18f24a56ccp-12, 0x1.c1226bd6032ep-11,   -0x1.9c42f939cc994p-13, -0x1.8f7912aa49793p-15,
    0x1.192225f190762p-15,  0x1.d52363ac054b1p-23,  -0x1.2ed4e6429ec38p-18, 0x1.f0806f99f352fp-22,
    0x1.4e5ebb8d115c2p-21,  -0x1.b8dd481a8aae6p-24, -0x1.92e4eee23c9a6p-24, 0x1.1de157f71b0d9p-26,
    0x1.e02761cdfec7bp-27,  -0x1.0415fb8623cf3p-29, -0x1.714aac603a2a3p-30};

// e^(x^2) erfc(x) (x + c) in (x - c)/(x + c), c = 3.25, up to 10.1
inline constexpr double kShortErfcF64[] = {
    0x1.14c83271b566ap+0,   -0x1.d374145567932p-1, 0x1.4a9d9f7a2df92p-1, -0x1.802b2a90c5c8ap-2,
    0x1.604432723039bp-3,   -0x1.d04f398c1f519p-5, 0x1.38704eb0e3059p-7, 0x1.de2fa144c28f8p-10,
    -0x1.895ec3ab37f4dp-10, 0x1.e9f8889f2dee2p-14, 0x1.3a796c0cb2df9p-13};

// 64 zero bits, then 2/pi behind the point
inline constexpr uint64_t kTwoOverPi[] = {0x0,
                                          0xa2f9836e4e441529,
                                          0xfc2757d1f534ddc0,
                                          0xdb6295993c439041,
                                          0xfe5163abdebbc561,
                                          0xb7246e3a424dd2e0,
                                          0x06492eea09d1921c,
                                          0xfe1deb1cb129a73e,
                                          0xe88235f52ebb4484,
                                          0xe99c7026b45f7e41,
                                          0x3991d639835339f4,
                                          0x9c845f8bbdf9283b,
                                          0x1ff897ffde05980f,
                                          0xef2f118b5a0a6d1f,
                                          0x6d367ecf27cb09b7,
                                          0x4f463f669e5fea2d,
                                          0x7527bac7ebe5f17b,
                                          0x3d0739f78a5292ea,
                                          0x6bfb5fb11f8d5d08,
                                          0x56033046fc7b6bab,
                                          0xf0cfbc209af4361d,
                                          0xa9e391615ee61b08};

}  // namespace mlcc::codegen::cpu
