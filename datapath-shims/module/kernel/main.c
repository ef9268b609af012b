// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* The module's parameters, start and end. */
#include <linux/ctype.h>
#include <linux/log2.h>
#include <linux/module.h>

#include "module.h"

#define MIN_RING_BYTES (4 * CCPLANE_MAX_FRAME_BYTES)
#define MAX_RING_BYTES (1 << 24)
#define MAX_NAMES 15

static char *name = "ccplane";
module_param(name, charp, 0444);
MODULE_PARM_DESC(name, "name of the congestion control and of the device");
static char *names[MAX_NAMES];
static unsigned int name_count;
module_param_array(names, charp, &name_count, 0444);
MODULE_PARM_DESC(names, "more names by which sockets may choose it, for rules to tell them apart; at most 15");
static struct tcp_congestion_ops named[MAX_NAMES];
unsigned int ccplane_max_flows = CCPLANE_MAX_FLOWS;
module_param_named(flows, ccplane_max_flows, uint, 0444);
MODULE_PARM_DESC(flows, "flows at once, at most 65536; further ones run the kernel's Reno");
unsigned int ccplane_max_programs = 64;
module_param_named(programs, ccplane_max_programs, uint, 0444);
MODULE_PARM_DESC(programs, "programs of one agent at once, at most 1024");
unsigned int ccplane_timeout_ms;
module_param_named(timeout, ccplane_timeout_ms, uint, 0444);
MODULE_PARM_DESC(timeout, "silence of the agent after which flows run the fallback, milliseconds; 0: as the agent says");
unsigned int ccplane_sample_us = 10000;
module_param_named(sample, ccplane_sample_us, uint, 0444);
MODULE_PARM_DESC(sample, "least time between two samples of a flow's statistics, microseconds");
unsigned int ccplane_ring_bytes = 1 << 20;
module_param_named(ring, ccplane_ring_bytes, uint, 0444);
MODULE_PARM_DESC(ring, "bytes of an agent's ring of events, a power of two from 262144 to 16777216");
static char *fallback = "reno";
module_param(fallback, charp, 0444);
MODULE_PARM_DESC(fallback, "what flows run without a program or agent: reno or cubic");
bool ccplane_native_cubic;
static char *portus = "off";
module_param(portus, charp, 0444);
MODULE_PARM_DESC(portus, "how a stock portus agent may steer flows: off, netlink, or device (/dev/ccpkp)");
static const struct ccplane_portus_link *portus_link;

struct ccplane_counters ccplane_counters;

static bool is_name(const char *text)
{
	const char *at;

	for (at = text; *at; at++)
		if (!isalnum(*at) && *at != '_')
			return false;
	return at > text && at - text < TCP_CA_NAME_MAX;
}

static int check_parameters(void)
{
	unsigned int n;

	ccplane_native_cubic = !strcmp(fallback, "cubic");
	for (n = 0; n < name_count && is_name(names[n]); n++)
		;
	if (!is_name(name) || n < name_count) {
		pr_err("ccplane: name, names: 1 to %d letters, digits or _\n", TCP_CA_NAME_MAX - 1);
		return -EINVAL;
	}
	if (!ccplane_native_cubic && strcmp(fallback, "reno")) {
		pr_err("ccplane: fallback: reno or cubic\n");
		return -EINVAL;
	}
	if (!strcmp(portus, "netlink")) {
		portus_link = &ccplane_portus_netlink;
	} else if (!strcmp(portus, "device")) {
		portus_link = &ccplane_portus_device;
	} else if (strcmp(portus, "off")) {
		pr_err("ccplane: portus: off, netlink or device\n");
		return -EINVAL;
	}
	if (!ccplane_max_flows || ccplane_max_flows > CCPLANE_MAX_FLOWS) {
		pr_err("ccplane: flows: 1 to %u\n", CCPLANE_MAX_FLOWS);
		return -EINVAL;
	}
	if (!ccplane_max_programs || ccplane_max_programs > CCPLANE_MAX_PROGRAMS) {
		pr_err("ccplane: programs: 1 to %u\n", CCPLANE_MAX_PROGRAMS);
		return -EINVAL;
	}
	if (!is_power_of_2(ccplane_ring_bytes) || ccplane_ring_bytes < MIN_RING_BYTES || ccplane_ring_bytes > MAX_RING_BYTES) {
		pr_err("ccplane: ring: a power of two from %d to %d\n", MIN_RING_BYTES, MAX_RING_BYTES);
		return -EINVAL;
	}
	return 0;
}

/* Takes back the first names of `names`, and the module's own. */
static void unregister_names(unsigned int count)
{
	while (count--)
		tcp_unregister_congestion_control(&named[count]);
	tcp_unregister_congestion_control(&ccplane_tcp);
}

static int register_names(void)
{
	unsigned int n;
	int error;

	for (n = 0; n < name_count; n++) {
		named[n] = ccplane_tcp;
		strscpy(named[n].name, names[n], sizeof(named[n].name));
	}
	error = tcp_register_congestion_control(&ccplane_tcp);
	if (error)
		return error;
	for (n = 0; n < name_count; n++) {
		error = tcp_register_congestion_control(&named[n]);
		if (error) {
			pr_err("ccplane: names: %s cannot be registered\n", names[n]);
			unregister_names(n);
			return error;
		}
	}
	return 0;
}

static int __init ccplane_module_init(void)
{
	int error = check_parameters();

	if (error)
		return error;
	ccplane_tables_init();
	strscpy(ccplane_tcp.name, name, sizeof(ccplane_tcp.name));
	error = ccplane_netns_init();
	if (error)
		return error;
	error = ccplane_flows_init();
	if (error)
		goto no_flows;
	error = register_names();
	if (error)
		goto no_tcp;
	error = ccplane_device_init(name);
	if (error)
		goto no_device;
	error = portus_link ? ccplane_portus_init(name, portus_link) : 0;
	if (error)
		goto no_portus;
	return 0;
no_portus:
	ccplane_device_exit();
no_device:
	unregister_names(name_count);
no_tcp:
	ccplane_flows_exit();
no_flows:
	ccplane_netns_exit();
	return error;
}

/* Flows and openers of the device hold the module: there are none by now. */
static void __exit ccplane_module_exit(void)
{
	if (portus_link)
		ccplane_portus_exit();
	ccplane_device_exit();
	unregister_names(name_count);
	ccplane_flows_exit();
	ccplane_netns_exit();
}

module_init(ccplane_module_init);
module_exit(ccplane_module_exit);
MODULE_AUTHOR("the ccplane authors");
MODULE_DESCRIPTION("Congestion control by programs that an agent installs");
MODULE_LICENSE("Dual MIT/GPL");
