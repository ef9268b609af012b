
/* What a flow keeps for its policies, besides its histories. All zero at first. */
struct ccplane_flow_policy {
	uint64_t noise;
	uint32_t uid;
	uint32_t buffer;
	uint32_t level;
	uint32_t level_uid;
	uint32_t penalty;
	uint32_t decisions;
	uint32_t saturated;
	uint32_t clipped;
	uint32_t collapsed;
	uint32_t trips;
};

/* What a decision may change: bytes, and bytes per second. */
struct ccplane_knobs {
	int64_t cwnd_bytes;
	int64_t rate_bytes_per_s;
};

/* Inference for one shape: the action before noise and bound, Q16; counts the inputs out of their range. */
typedef int64_t (*ccplane_infer)(const uint64_t *image, const int32_t *inputs, uint32_t *clipped);

/* A slot. An image that is being written has uid 0; none may change while a decision reads it. */
struct ccplane_slot {
	uint64_t shape;
	ccplane_infer infer;
	const uint64_t *images[CCPLANE_BUFFERS];
};

enum ccplane_level { CCPLANE_CHOSEN, CCPLANE_LAST_GOOD, CCPLANE_NATIVE };

static inline uint32_t ccplane_u32(const uint64_t *image, unsigned int at)
{
	return (uint32_t)(image[at / 8] >> (8 * (at % 8 & 4)));
}

static inline int64_t ccplane_i64(const uint64_t *image, unsigned int at)
{
	return (int64_t)image[at / 8];
}

static inline int64_t ccplane_clamp(int64_t value, int64_t min, int64_t max)
{
	value = value < min ? min : value;
	return value > max ? max : value;
}

static inline uint64_t ccplane_spread(uint64_t key)
{
	return (key + 1) * 0x9e3779b97f4a7c15ULL;
}

/* A number of mean 0, from Marsaglia's xorshift64. */
static inline int64_t ccplane_draw(struct ccplane_flow_policy *flow, uint64_t key)
{
	uint64_t x = flow->noise ? flow->noise : ccplane_spread(key) | 1;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	flow->noise = x;
	return (int64_t)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48)) - 131070;
}

/* The buffer at `shift` of a control word; -1 for none. */
static inline int ccplane_part(uint64_t control, unsigned int shift)
{
	unsigned int n = (unsigned int)(control >> shift) & 0xff;

	return n >= 1 && n <= CCPLANE_BUFFERS ? (int)n - 1 : -1;
}

/* The buffer that the flow decides by; -1 for none. */
static inline int ccplane_choose(const struct ccplane_slot *slot, uint64_t control, uint64_t key,
				 struct ccplane_flow_policy *flow)
{
	int choice = ccplane_part(control, 8), good = ccplane_part(control, 0), buffer;
	unsigned int kept = flow->buffer % CCPLANE_BUFFERS;

	if (choice < 0 || (ccplane_spread(key) >> 48) >= (control >> 32 & 0xffff))
		choice = ccplane_part(control, 0);
	if (choice < 0)
		return -1;
	buffer = choice;
	if (flow->uid && ccplane_u32(slot->images[kept], CCPLANE_UID) == flow->uid &&
	    (ccplane_u32(slot->images[kept], CCPLANE_FLAGS) & CCPLANE_PIN))
		buffer = (int)kept;
	if (flow->level != CCPLANE_CHOSEN) {
		/* A canary's flow goes back to the active snapshot, any other one to the last good. */
		if (good < 0 || ccplane_u32(slot->images[good], CCPLANE_UID) == flow->level_uid)
			good = ccplane_part(control, 16);
		buffer = choice;
		if (ccplane_u32(slot->images[buffer], CCPLANE_UID) != flow->level_uid) {
			flow->level = CCPLANE_CHOSEN;
			flow->penalty = 0;
		} else if (flow->level == CCPLANE_LAST_GOOD && good >= 0 &&
			   ccplane_u32(slot->images[good], CCPLANE_UID) != flow->level_uid) {
			buffer = good;
		} else {
			flow->level = CCPLANE_NATIVE;
			return -1;
		}
	}
	if (!ccplane_u32(slot->images[buffer], CCPLANE_UID) ||
	    slot->images[buffer][CCPLANE_SHAPE / 8] != slot->shape)
		return -1;
	return buffer;
}

/* Applies the action map; true if that left the knob at its minimum. */
static inline int ccplane_apply(const uint64_t *image, int64_t action_q16, struct ccplane_knobs *knobs)
{
	uint32_t map = ccplane_u32(image, CCPLANE_MAP);
	int64_t min = ccplane_i64(image, CCPLANE_KNOB_MIN), max = ccplane_i64(image, CCPLANE_KNOB_MAX);
	int64_t *knob;
	uint64_t value, change_q20;

	if (map == CCPLANE_MAP_RATE)
		knob = &knobs->rate_bytes_per_s;
	else if (map == CCPLANE_MAP_CWND)
		knob = &knobs->cwnd_bytes;
	else
		return 0;
	change_q20 = (action_q16 < 0 ? 0 - (uint64_t)action_q16 : (uint64_t)action_q16) *
		     image[CCPLANE_STEP_Q20 / 8] >> 16;
	value = (uint64_t)ccplane_clamp(*knob, min, max);
	if (action_q16 >= 0)
		value += value * change_q20 >> 20;
	else
		value = ccplane_div(value << 20, change_q20 + (1 << 20));
	*knob = ccplane_clamp((int64_t)value, min, max);
	return *knob == min;
}

/* The monitor. */
static inline void ccplane_watch(struct ccplane_flow_policy *flow, uint32_t limit, int bad)
{
	if (bad)
		flow->penalty = flow->penalty > UINT32_MAX - CCPLANE_PENALTY_UP ? UINT32_MAX :
				flow->penalty + CCPLANE_PENALTY_UP;
	else if (flow->penalty)
		flow->penalty--;
	if (!limit || flow->penalty < limit)
		return;
	flow->penalty = 0;
	flow->trips++;
	if (flow->level == CCPLANE_CHOSEN) {
		flow->level = CCPLANE_LAST_GOOD;
		flow->level_uid = flow->uid;
	} else {
		flow->level = CCPLANE_NATIVE;
	}
}

/*
 * Decides for the flow named `key`, on the slot's control word as it was read once: the action, Q16, by the deployment
 * flow->uid. False if there is none to decide by: the flow is the native algorithm's from now on.
 */
static inline int ccplane_decide(const struct ccplane_slot *slot, uint64_t control, uint64_t key,
				 struct ccplane_flow_policy *flow, const int32_t *inputs,
				 struct ccplane_knobs *knobs, int64_t *action_q16)
{
	int buffer = ccplane_choose(slot, control, key, flow), saturated, clipped, collapsed;
	const uint64_t *image;
	uint32_t clipped_inputs = 0;
	int64_t action, wanted, noise, bound;

	if (buffer < 0)
		return 0;
	image = slot->images[buffer];
	wanted = slot->infer(image, inputs, &clipped_inputs);
	bound = (int32_t)ccplane_u32(image, CCPLANE_ACTION_BOUND_Q16);
	action = ccplane_clamp(wanted, -bound, bound);
	/* The network's own action: exploring beyond the bound is not penalised. */
	saturated = action != wanted;
	noise = ccplane_i64(image, CCPLANE_NOISE_MULT);
	if (noise) {
		noise = (int64_t)((uint64_t)ccplane_draw(flow, key) * (uint64_t)noise) >> 16;
		action = ccplane_clamp((int64_t)((uint64_t)action + (uint64_t)noise), -bound, bound);
	}
	collapsed = ccplane_apply(image, action, knobs);
	clipped = clipped_inputs > ccplane_u32(image, CCPLANE_CLIP_LIMIT);
	/* An opinion on what the network does not know is none. */
	if (clipped && ccplane_u32(image, CCPLANE_MAP) == CCPLANE_MAP_NONE)
		action = 0;
	flow->uid = ccplane_u32(image, CCPLANE_UID);
	flow->buffer = (uint32_t)buffer;
	flow->decisions++;
	flow->saturated += (uint32_t)saturated;
	flow->clipped += (uint32_t)clipped;
	flow->collapsed += (uint32_t)collapsed;
	ccplane_watch(flow, ccplane_u32(image, CCPLANE_TRIP_LIMIT), saturated || clipped || collapsed);
	*action_q16 = action;
	return 1;
}

#endif
