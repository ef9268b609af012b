// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Networks in integers: what nn-inkernel/ARITHMETIC.md says, for images of any shape. */
#include "vm.h"

/* Offsets in an image, bytes, beside those in policy.h; see nn-inkernel/infer/src/image.rs. */
#define OUT_MULT 24
#define OUT_SHIFT 32
#define NAME_END 112
#define FEATURES 128
#define FEATURE_BYTES 16
#define FEATURE_MULT 8

#define MAX_BOUND_Q16 (1 << 24)
#define MAX_CHANGE_Q20 (1 << 22)
#define MAX_KNOB ((int64_t)1 << 40)
#define MAX_OUT_MULT (((int64_t)1 << 32) - 1)
#define MAX_OUT_SHIFT 63
/* 2^48 over the deviation of four 16-bit uniform numbers' sum, and one. */
#define MAX_NOISE_MULT (((int64_t)1 << 48) / 37837 + 1)

/* Tables of each width: tanh of up to 2^e for e of 0 to 7, then relu. */
#define CLASSES 16
#define RELU 8
#define STRIDE_W8 2048
#define STRIDE_W16 2050

/* The largest activations. */
#define MAX_W8 127
#define MAX_W16 8191
/* A neuron's output: no wider than it needs, as a kernel's stack has little room for a layer's. */
typedef int16_t activation;

/* Neurons go in words of three sums of 21 bits, or two of 32. */
#define MAX_LANES 3
#define MAX_GROUPS (CCPLANE_MAX_WIDTH / 2)
/* Sums that stay in registers while a layer's inputs pass by. */
#define BLOCK 6

const uint64_t ccplane_no_image[CCPLANE_IMAGE_HEAD_WORDS];

int8_t ccplane_table_w8[CLASSES * STRIDE_W8];
int16_t ccplane_table_w16[CLASSES * STRIDE_W16];

/*
 * The tables, by the integer arithmetic of nn-inkernel/infer/src/tables.rs.
 */

/* Fractional bits of the exponential. */
#define Q 62
#define ONE ((uint64_t)1 << Q)
/* Bits of an argument in units of 2^-10. */
#define POWERS 20

/* a b / 2^62, by halves: a kernel need not have 128-bit numbers. */
static uint64_t mul_q(uint64_t a, uint64_t b)
{
	uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
	uint64_t low = a0 * b0, middle = a1 * b0 + (low >> 32), other = a0 * b1 + (uint32_t)middle;
	uint64_t high = a1 * b1 + (middle >> 32) + (other >> 32);

	return high << (64 - Q) | (uint64_t)(uint32_t)other >> (Q - 32);
}

/* exp(-2^(k-10)) for each k. */
static void exponentials(uint64_t all[POWERS])
{
	uint64_t x = ONE >> 10, c = ONE - x, term = mul_q(x, x);
	unsigned int k;

	c += term / 2;
	term = mul_q(term, x);
	c -= term / 6;
	term = mul_q(term, x);
	c += term / 24;
	term = mul_q(term, x);
	c -= term / 120;
	for (k = 0; k < POWERS; k++) {
		all[k] = c;
		c = mul_q(c, c);
	}
}

/* scale tanh(half / 2^11), rounded. */
static int64_t tanh_of(const uint64_t exp[POWERS], int64_t half, uint64_t scale)
{
	uint64_t bits = (uint64_t)(half < 0 ? -half : half), e = ONE, top, bottom, y;
	unsigned int k;

	for (k = 0; k < POWERS; k++)
		if (bits >> k & 1)
			e = mul_q(e, exp[k]);
	top = (ONE - e) >> 12;
	bottom = (ONE + e) >> 12;
	y = ccplane_div(top * scale + bottom / 2, bottom);
	return half < 0 ? -(int64_t)y : (int64_t)y;
}

/* scale max(0, half / 2^11), rounded, at most scale. */
static int64_t relu_of(int64_t half, int64_t scale)
{
	return ccplane_clamp((half * scale + (1 << 10)) >> 11, 0, scale);
}

static int64_t table_entry(const uint64_t exp[POWERS], unsigned int class, int64_t half, int64_t scale)
{
	if (class < RELU)
		return tanh_of(exp, half * ((int64_t)1 << class), (uint64_t)scale);
	return relu_of(half * ((int64_t)1 << (class - RELU)), scale);
}

void ccplane_tables_init(void)
{
	uint64_t exp[POWERS];
	unsigned int n;

	exponentials(exp);
	/* Twice the middle of each interval, less the lane's offset; then twice its lower end, the last one as padding. */
	for (n = 0; n < CLASSES * STRIDE_W8; n++)
		ccplane_table_w8[n] =
			(int8_t)table_entry(exp, n / STRIDE_W8, (int64_t)(n % STRIDE_W8) * 2 + 1 - 2048, MAX_W8);
	for (n = 0; n < CLASSES * STRIDE_W16; n++) {
		int64_t at = n % STRIDE_W16;

		ccplane_table_w16[n] =
			(int16_t)table_entry(exp, n / STRIDE_W16, (at > 2048 ? 2048 : at) * 2 - 2048, MAX_W16);
	}
}

/*
 * Shapes.
 */
struct shape {
	bool wide;		/* 16-bit activations */
	unsigned int layers;
	unsigned int lanes;
	unsigned int lane_bits;
	unsigned int widths[CCPLANE_MAX_LAYERS + 1];
};

/* The parts of a code, whatever it is. */
static struct shape shape_of(uint64_t code)
{
	struct shape shape = { .wide = (code & 0xff) == 16, .layers = code >> 8 & 0xff };
	unsigned int n;

	shape.lanes = shape.wide ? 2 : 3;
	shape.lane_bits = shape.wide ? 32 : 21;
	for (n = 0; n <= CCPLANE_MAX_LAYERS; n++)
		shape.widths[n] = code >> (16 + 8 * n) & 0xff;
	return shape;
}

/* Words that hold the sums of so many neurons. */
static inline unsigned int groups_of(bool wide, unsigned int neurons)
{
	return wide ? (neurons + 1) / 2 : (neurons + 2) / 3;
}

/* Words of a layer: biases, weights, and where it is hidden, tables. */
static size_t layer_words(const struct shape *shape, unsigned int layer)
{
	unsigned int neurons = shape->widths[layer + 1];
	size_t tables = layer + 1 < shape->layers ? (neurons + 1) / 2 : 0;

	return (size_t)groups_of(shape->wide, neurons) * (shape->widths[layer] + 1) + tables;
}

size_t ccplane_shape_image_bytes(uint64_t code)
{
	struct shape shape = shape_of(code);
	unsigned int n;
	size_t words;

	if (((code & 0xff) != 8 && (code & 0xff) != 16) || code >> (16 + 8 * (CCPLANE_MAX_LAYERS + 1)) ||
	    shape.layers < 1 || shape.layers > CCPLANE_MAX_LAYERS || shape.widths[shape.layers] != 1)
		return 0;
	words = (FEATURES + FEATURE_BYTES * shape.widths[0]) / 8;
	for (n = 0; n <= CCPLANE_MAX_LAYERS; n++)
		if ((n <= shape.layers) != (shape.widths[n] >= 1) || shape.widths[n] > CCPLANE_MAX_WIDTH)
			return 0;
	for (n = 0; n < shape.layers; n++)
		words += layer_words(&shape, n);
	return words * 8 <= CCPLANE_MAX_IMAGE_BYTES ? words * 8 : 0;
}

/*
 * Inference. A processor multiplies one pair of words at a time, and does much beside it. So hidden layers take inputs
 * in pairs, with half the products (Winograd 1968), which is exact in words that wrap:
 *
 *	x V + y W = (x + W) (y + V) - x y - V W
 *
 * x y is the same for all sums, and V W is known when an image arrives: prepare() takes it off the biases. A few sums
 * stay in registers while a layer's inputs pass by, inputs are brought into range as the first ones do, and what one
 * block of sums stands for is looked up once the next block is under way, when nothing waits for it.
 */

/* The u32 with this number, as image.rs counts them. */
static inline uint32_t half_word(const uint64_t *words, unsigned int n)
{
	uint32_t half;

	memcpy(&half, (const uint8_t *)words + n * sizeof(half), sizeof(half));
	return half;
}

/* A layer's parts in an image. */
struct layer {
	const uint64_t *bias;
	const uint64_t *weights;
	const uint64_t *tables;
	unsigned int inputs;
	unsigned int neurons;
	unsigned int groups;
	/* Where the first layer's inputs come from, if they are not brought into range before it. */
	const uint64_t *features;
	const int32_t *cells;
	uint32_t clipped;
	/* Of the pairs of inputs, together: what each sum is too large by. */
	uint64_t products;
};

/* An input within its range, as an activation. */
static inline int64_t normalise(const uint64_t *feature, int64_t max, int32_t cell, uint32_t *clipped)
{
	uint32_t lo = half_word(feature, 0), span = half_word(feature, 1) - lo, above = (uint32_t)cell - lo;

	if (ccplane_unlikely(above > span)) {
		++*clipped;
		above = cell < (int32_t)lo ? 0 : span;
	}
	return (int64_t)((above * feature[FEATURE_MULT / 8] + 0x80000000u) >> 32) - max;
}

/* The activation at x; where it is not ready, it is made of the feature's cell. */
static inline __attribute__((always_inline)) uint64_t input(const bool wide, const bool ready, const uint64_t *feature,
							    const int32_t *cell, activation *x, uint32_t *clipped)
{
	int64_t activated;

	if (ready)
		return (uint64_t)(int64_t)*x;
	activated = normalise(feature, wide ? MAX_W16 : MAX_W8, *cell, clipped);
	*x = (activation)activated;
	return (uint64_t)activated;
}

/* What the inputs of each pair multiply to, together. */
static inline uint64_t products_of(const activation *x, unsigned int inputs)
{
	const activation *end = x + (inputs & ~1u);
	int64_t products = 0;

	for (; x != end; x += 2)
		products += x[0] * x[1];
	return (uint64_t)products;
}

/*
 * The sums of n groups from group g on, n a constant of at most BLOCK. Written out, so that they stay in registers
 * whatever the compiler unrolls.
 */
static inline __attribute__((always_inline)) void block(const bool wide, const bool first, const unsigned int n,
							struct layer *layer, unsigned int g, activation *x,
							uint64_t *sums)
{
	const uint64_t *bias = layer->bias + g, *even = layer->weights + g, *odd = even + layer->groups;
	const uint64_t *feature = layer->features;
	const activation *end = x + (layer->inputs & ~1u);
	const int32_t *cell = layer->cells;
	size_t step = 2 * (size_t)layer->groups;
	unsigned int k;
	uint32_t clipped = 0;
	uint64_t products = first ? 0 : layer->products, v, w;
	uint64_t a = bias[0], b = n > 1 ? bias[1] : 0, c = n > 2 ? bias[2] : 0;
	uint64_t d = n > 3 ? bias[3] : 0, e = n > 4 ? bias[4] : 0, f = n > 5 ? bias[5] : 0;

	for (; x != end; x += 2, even += step, odd += step) {
		v = input(wide, !first, feature, cell, x, &clipped);
		w = input(wide, !first, feature + FEATURE_BYTES / 8, cell + 1, x + 1, &clipped);
		if (first) {
			feature += 2 * FEATURE_BYTES / 8;
			cell += 2;
			products += v * w;
		}
		a += (v + odd[0]) * (w + even[0]);
		if (n > 1)
			b += (v + odd[1]) * (w + even[1]);
		if (n > 2)
			c += (v + odd[2]) * (w + even[2]);
		if (n > 3)
			d += (v + odd[3]) * (w + even[3]);
		if (n > 4)
			e += (v + odd[4]) * (w + even[4]);
		if (n > 5)
			f += (v + odd[5]) * (w + even[5]);
	}
	sums[g] = a - products;
	if (n > 1)
		sums[g + 1] = b - products;
	if (n > 2)
		sums[g + 2] = c - products;
	if (n > 3)
		sums[g + 3] = d - products;
	if (n > 4)
		sums[g + 4] = e - products;
	if (n > 5)
		sums[g + 5] = f - products;
	if (layer->inputs & 1) {
		v = input(wide, !first, feature, cell, x, &clipped);
		for (k = 0; k < n; k++)
			sums[g + k] += v * even[k];
	}
	if (first) {
		layer->clipped = clipped;
		layer->products = products;
	}
}

static inline activation look_up_w8(uint32_t table, uint64_t lane)
{
	return ccplane_table_w8[table + (lane >> 10 & 2047)];
}

static inline activation look_up_w16(uint32_t table, uint32_t lane)
{
	const int16_t *entry = ccplane_table_w16 + table + (lane >> 21);
	int64_t fraction = lane >> 11 & 1023;

	return (activation)(entry[0] + (((entry[1] - entry[0]) * fraction) >> 10));
}

/* The activations of the neurons from n, the first one of a word, up to end. */
static inline __attribute__((always_inline)) void activate(const bool wide, const uint64_t *sums,
							   const uint64_t *tables, unsigned int n, unsigned int end,
							   activation *y)
{
	const uint64_t *word = sums + n / 3;

	if (wide) {
		for (; n < end; n++)
			y[n] = look_up_w16(half_word(tables, n), half_word(sums, n));
		return;
	}
	for (; n + 3 <= end; n += 3, word++) {
		uint64_t lanes = *word;

		y[n] = look_up_w8(half_word(tables, n), lanes);
		y[n + 1] = look_up_w8(half_word(tables, n + 1), lanes >> 21);
		y[n + 2] = look_up_w8(half_word(tables, n + 2), lanes >> 42);
	}
	if (n < end)
		y[n] = look_up_w8(half_word(tables, n), *word);
	if (n + 1 < end)
		y[n + 1] = look_up_w8(half_word(tables, n + 1), *word >> 21);
}

/* Inlined, so that a layer's parts stay in registers: calls of it took a twentieth of an inference. */
static inline __attribute__((always_inline)) void hidden(const bool wide, struct layer *layer, activation *x,
							 uint64_t *sums, activation *y)
{
	unsigned int g = 0, done = 0, left;

	if (layer->cells) {
		block(wide, true, BLOCK, layer, 0, x, sums);
		g = BLOCK;
	} else {
		layer->products = products_of(x, layer->inputs);
	}
	for (; (left = layer->groups - g) >= BLOCK; g += BLOCK) {
		unsigned int before = g * (wide ? 2 : 3);

		block(wide, false, BLOCK, layer, g, x, sums);
		activate(wide, sums, layer->tables, done, before, y);
		done = before;
	}
	switch (left) {
	case 5:
		block(wide, false, 5, layer, g, x, sums);
		break;
	case 4:
		block(wide, false, 4, layer, g, x, sums);
		break;
	case 3:
		block(wide, false, 3, layer, g, x, sums);
		break;
	case 2:
		block(wide, false, 2, layer, g, x, sums);
		break;
	case 1:
		block(wide, false, 1, layer, g, x, sums);
	}
	activate(wide, sums, layer->tables, done, layer->neurons, y);
}

int64_t ccplane_image_infer(const uint64_t *image, const int32_t *inputs, uint32_t *clipped)
{
	/* As bytes: the width of activations, the number of layers, the layers' widths. */
	uint64_t code = image[CCPLANE_SHAPE / 8], widths = code >> 16;
	bool wide = (code & 0xff) == 16;
	unsigned int layers = code >> 8 & 0xff, n;
	struct layer layer = { .features = image + FEATURES / 8, .cells = inputs, .inputs = widths & 0xff };
	activation x[CCPLANE_MAX_WIDTH], y[CCPLANE_MAX_WIDTH], *from = x, *to = y, *free;
	uint64_t mask = wide ? 0xffffffff : 0x1fffff, sums[MAX_GROUPS], sum;

	if (layers < 2 || groups_of(wide, widths >> 8 & 0xff) < BLOCK) {
		for (n = 0; n < layer.inputs; n++)
			x[n] = (activation)normalise(layer.features + FEATURE_BYTES / 8 * n, wide ? MAX_W16 : MAX_W8,
						     inputs[n], &layer.clipped);
		layer.cells = NULL;
	}
	layer.bias = layer.features + FEATURE_BYTES / 8 * layer.inputs;
	for (; layers > 1; layers--) {
		widths >>= 8;
		layer.neurons = widths & 0xff;
		layer.groups = groups_of(wide, layer.neurons);
		layer.weights = layer.bias + layer.groups;
		layer.tables = layer.weights + (size_t)layer.groups * layer.inputs;
		if (wide)
			hidden(true, &layer, from, sums, to);
		else
			hidden(false, &layer, from, sums, to);
		layer.bias = layer.tables + (layer.neurons + 1) / 2;
		layer.inputs = layer.neurons;
		layer.cells = NULL;
		free = from;
		from = to;
		to = free;
	}
	sum = layer.bias[0];
	for (n = 0; n < layer.inputs; n++)
		sum += (uint64_t)(int64_t)from[n] * layer.bias[1 + n];
	sum = (sum & mask) - ((mask >> 1) + 1);
	*clipped = layer.clipped;
	return (int64_t)(sum * image[OUT_MULT / 8]) >> (image[OUT_SHIFT / 8] & 63);
}

/* Takes the products of the weights of all pairs off the biases of the hidden layers. */
static void prepare(const struct shape *shape, uint64_t *words)
{
	unsigned int layer, i, g;

	for (layer = 0; layer + 1 < shape->layers; layer++) {
		size_t groups = groups_of(shape->wide, shape->widths[layer + 1]);
		const uint64_t *even = words + groups, *odd = even + groups;

		for (i = 1; i < shape->widths[layer]; i += 2, even += 2 * groups, odd += 2 * groups)
			for (g = 0; g < groups; g++)
				words[g] -= even[g] * odd[g];
		words += layer_words(shape, layer);
	}
}

/*
 * Validation: nn-inkernel/infer/src/check.rs.
 */
static int wrong(struct ccplane_error *error, uint32_t code, uint32_t place, size_t index)
{
	*error = (struct ccplane_error){ code, place, (uint32_t)index };
	return -1;
}

static int verify_head(const uint64_t *image, struct ccplane_error *error)
{
	int64_t bound = ccplane_u32(image, CCPLANE_ACTION_BOUND_Q16), min = ccplane_i64(image, CCPLANE_KNOB_MIN);
	/* bound step / 2^16 is at most MAX_CHANGE_Q20. */
	int64_t max_step = (((int64_t)MAX_CHANGE_Q20 + 1) << 16) - 1;
	const struct {
		unsigned int at;
		int64_t found, min, max;
	} limits[] = {
		{ CCPLANE_UID, ccplane_u32(image, CCPLANE_UID), 1, UINT32_MAX },
		{ CCPLANE_ACTION_BOUND_Q16, bound, 1, MAX_BOUND_Q16 },
		{ CCPLANE_MAP, ccplane_u32(image, CCPLANE_MAP), 0, CCPLANE_MAP_CWND },
		{ OUT_MULT, ccplane_i64(image, OUT_MULT), 1, MAX_OUT_MULT },
		{ OUT_SHIFT, ccplane_u32(image, OUT_SHIFT), 0, MAX_OUT_SHIFT },
		{ CCPLANE_STEP_Q20, ccplane_i64(image, CCPLANE_STEP_Q20), 0, max_step / (bound ? bound : 1) },
		{ CCPLANE_KNOB_MIN, min, 1, MAX_KNOB },
		{ CCPLANE_KNOB_MAX, ccplane_i64(image, CCPLANE_KNOB_MAX), min == INT64_MAX ? min : min + 1, MAX_KNOB },
		{ CCPLANE_NOISE_MULT, ccplane_i64(image, CCPLANE_NOISE_MULT), 0, MAX_NOISE_MULT },
		{ CCPLANE_FLAGS, ccplane_u32(image, CCPLANE_FLAGS), 0, CCPLANE_PIN },
	};
	unsigned int n, at;

	for (n = 0; n < sizeof(limits) / sizeof(limits[0]); n++)
		if (limits[n].found < limits[n].min || limits[n].found > limits[n].max)
			return wrong(error, CCPLANE_IMAGE_RANGE, CCPLANE_AT_BYTE, limits[n].at);
	if (ccplane_u32(image, CCPLANE_FLAGS + 4))
		return wrong(error, CCPLANE_IMAGE_RESERVED, CCPLANE_AT_BYTE, CCPLANE_FLAGS + 4);
	for (at = NAME_END; at < FEATURES; at += 4)
		if (ccplane_u32(image, at))
			return wrong(error, CCPLANE_IMAGE_RESERVED, CCPLANE_AT_BYTE, at);
	return 0;
}

static int verify_features(const struct shape *shape, const uint64_t *image, struct ccplane_error *error)
{
	uint64_t scale = (uint64_t)(shape->wide ? MAX_W16 : MAX_W8) * 2 << 32;
	unsigned int n;

	for (n = 0; n < shape->widths[0]; n++) {
		const uint64_t *feature = image + (FEATURES + FEATURE_BYTES * n) / 8;
		int64_t lo = (int32_t)(uint32_t)feature[0], hi = (int32_t)(uint32_t)(feature[0] >> 32);
		uint64_t span = (uint64_t)(hi - lo);

		if (lo >= hi || feature[FEATURE_MULT / 8] != ccplane_div(scale + span / 2, span))
			return wrong(error, CCPLANE_IMAGE_FEATURE, CCPLANE_AT_INPUT, n);
	}
	return 0;
}

/* Adds what a word of weights can add to the magnitude of each sum; false if it is no packing of 16-bit weights. */
static bool add_reach(const struct shape *shape, uint64_t word, int64_t max, int64_t reach[MAX_LANES])
{
	uint64_t half = (uint64_t)1 << (shape->lane_bits - 1);
	int64_t rest = (int64_t)word;
	unsigned int lane;

	for (lane = 0; lane < shape->lanes; lane++) {
		uint64_t low = (uint64_t)rest & (half * 2 - 1);
		int64_t weight = (int64_t)low - (low >= half ? (int64_t)half * 2 : 0);

		if (weight < INT16_MIN || weight > INT16_MAX)
			return false;
		/* A negative weight borrowed one from the lane above. */
		rest = (rest >> shape->lane_bits) + (weight < 0);
		reach[lane] += (weight < 0 ? -weight : weight) * max;
	}
	return rest == 0;
}

/* Proves that no sum of a layer overflows its lane. */
static int verify_sums(const struct shape *shape, unsigned int layer, const uint64_t *words,
		       struct ccplane_error *error)
{
	unsigned int groups = groups_of(shape->wide, shape->widths[layer + 1]), inputs = shape->widths[layer], g, i, lane;
	int64_t limit = (int64_t)1 << (shape->lane_bits - 1), max = shape->wide ? MAX_W16 : MAX_W8;

	for (g = 0; g < groups; g++) {
		int64_t reach[MAX_LANES] = { 0 };

		for (lane = 0; lane < shape->lanes; lane++) {
			uint64_t biased = words[g] >> (shape->lane_bits * lane) & ((uint64_t)limit * 2 - 1);
			int64_t bias = (int64_t)biased - limit;

			reach[lane] = bias < 0 ? -bias : bias;
		}
		for (i = 0; i < inputs; i++)
			if (!add_reach(shape, words[groups * (i + 1) + g], max, reach))
				return wrong(error, CCPLANE_IMAGE_WEIGHTS, CCPLANE_AT_LAYER, layer);
		for (lane = 0; lane < shape->lanes && g * shape->lanes + lane < shape->widths[layer + 1]; lane++)
			if (reach[lane] >= limit)
				return wrong(error, CCPLANE_IMAGE_OVERFLOW, CCPLANE_AT_LAYER, layer);
	}
	return 0;
}

static int verify_tables(const struct shape *shape, unsigned int layer, const uint64_t *tables,
			 struct ccplane_error *error)
{
	uint32_t stride = shape->wide ? STRIDE_W16 : STRIDE_W8;
	unsigned int n;

	for (n = 0; n < shape->widths[layer + 1]; n++) {
		uint32_t entry = half_word(tables, n);

		if (entry % stride || entry / stride >= CLASSES)
			return wrong(error, CCPLANE_IMAGE_TABLE, CCPLANE_AT_LAYER, layer);
	}
	return 0;
}

int ccplane_image_prepare(uint64_t code, uint64_t *image, size_t bytes, struct ccplane_error *error)
{
	struct shape shape = shape_of(code);
	size_t expected = ccplane_shape_image_bytes(code);
	const uint64_t *words;
	uint64_t *layers;
	unsigned int layer;

	if (!expected)
		return wrong(error, CCPLANE_BAD_SHAPE, CCPLANE_AT_WHOLE, 0);
	if (bytes != expected)
		return wrong(error, CCPLANE_IMAGE_LENGTH, CCPLANE_AT_WHOLE, 0);
	if (image[CCPLANE_SHAPE / 8] != code)
		return wrong(error, CCPLANE_IMAGE_SHAPE, CCPLANE_AT_BYTE, CCPLANE_SHAPE);
	if (verify_head(image, error) || verify_features(&shape, image, error))
		return -1;
	layers = image + (FEATURES + FEATURE_BYTES * shape.widths[0]) / 8;
	for (layer = 0, words = layers; layer < shape.layers; layer++) {
		size_t groups = groups_of(shape.wide, shape.widths[layer + 1]);
		const uint64_t *tables = words + groups * (shape.widths[layer] + 1);

		if (verify_sums(&shape, layer, words, error) ||
		    (layer + 1 < shape.layers && verify_tables(&shape, layer, tables, error)))
			return -1;
		words += layer_words(&shape, layer);
	}
	prepare(&shape, layers);
	return 0;
}
