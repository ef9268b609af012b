/* Runs generated code on what comes in on standard input; see mod.rs for the commands. */
#include <stdio.h>
#include <string.h>
#include "policy.h"

int64_t ccplane_infer_test(const uint64_t *image, const int32_t *inputs, uint32_t *clipped);

static uint64_t images[CCPLANE_BUFFERS][WORDS];
static struct ccplane_flow_policy flow;

static int get(void *to, size_t bytes)
{
	return fread(to, 1, bytes, stdin) == bytes;
}

static void put(const void *from, size_t bytes)
{
	fwrite(from, 1, bytes, stdout);
}

static int infer(void)
{
	int32_t inputs[INPUTS];
	uint32_t clipped[2] = { 0, 0 };
	uint64_t rows;
	int64_t action;

	if (!get(&rows, sizeof(rows)))
		return 0;
	while (rows--) {
		if (!get(inputs, sizeof(inputs)))
			return 0;
		action = ccplane_infer_test(images[0], inputs, clipped);
		put(&action, sizeof(action));
		put(clipped, sizeof(clipped));
	}
	return 1;
}

static int decide(void)
{
	struct { uint64_t shape, control, key; struct ccplane_knobs knobs; } in;
	struct { int64_t decided, action; struct ccplane_knobs knobs; } out = { 0, 0, { 0, 0 } };
	struct ccplane_slot slot = { 0, ccplane_infer_test, { images[0], images[1], images[2], images[3] } };
	int32_t inputs[INPUTS];

	if (!get(&in, sizeof(in)) || !get(inputs, sizeof(inputs)))
		return 0;
	slot.shape = in.shape;
	out.knobs = in.knobs;
	out.decided = ccplane_decide(&slot, in.control, in.key, &flow, inputs, &out.knobs, &out.action);
	put(&out, sizeof(out));
	put(&flow, sizeof(flow));
	return 1;
}

int main(void)
{
	uint64_t command, buffer;

	while (get(&command, sizeof(command))) {
		int ok = 1;

		if (command == 0)
			ok = get(&buffer, sizeof(buffer)) && get(images[buffer % CCPLANE_BUFFERS], sizeof(images[0]));
		else if (command == 1)
			ok = infer();
		else if (command == 2)
			ok = decide();
		else
			memset(&flow, 0, sizeof(flow));
		if (!ok)
			return 1;
		fflush(stdout);
	}
	return 0;
}
