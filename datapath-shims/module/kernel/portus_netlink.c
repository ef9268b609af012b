// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* The netlink group in which a stock portus agent listens for ccp-kernel (`--ipc netlink`). */
#include <linux/capability.h>
#include <linux/netlink.h>
#include <linux/skbuff.h>
#include <linux/uaccess.h>
#include <net/net_namespace.h>
#include <net/netlink.h>
#include <net/sock.h>

#include "module.h"

#define GROUP 22
#define MAX_BYTES (CCPLANE_MAX_TO_PORTUS_BYTES - NLMSG_HDRLEN)

static struct sock *group;

/* Takes a message from any process that may speak as portus. In the sender's context. */
static void on_message(struct sk_buff *skb)
{
	const struct nlmsghdr *header = nlmsg_hdr(skb);
	struct sk_buff *copy;

	if (!netlink_capable(skb, CAP_NET_ADMIN))
		return;
	if (skb->len <= NLMSG_HDRLEN || header->nlmsg_len <= NLMSG_HDRLEN || header->nlmsg_len > skb->len ||
	    header->nlmsg_len > CCPLANE_MAX_FROM_PORTUS_BYTES) {
		atomic64_inc(&ccplane_counters.malformed);
		return;
	}
	/* Of its own: the sender's counts as long as it lives, and on the group's socket. */
	copy = skb_copy(skb, GFP_KERNEL);
	if (!copy)
		return;
	skb_trim(copy, header->nlmsg_len);
	skb_pull(copy, NLMSG_HDRLEN);
	ccplane_portus_hear(copy);
}

static int send_message(const char __user *from, size_t len)
{
	struct nlmsghdr *header;
	struct sk_buff *skb;
	int error;

	if (!len || len > MAX_BYTES)
		return -EMSGSIZE;
	skb = nlmsg_new(len, GFP_KERNEL);
	if (!skb)
		return -ENOMEM;
	header = nlmsg_put(skb, 0, 0, NLMSG_DONE, (int)len, 0);
	if (!header || copy_from_user(nlmsg_data(header), from, len)) {
		kfree_skb(skb);
		return -EFAULT;
	}
	/* Portus would take what aligns it for another message. */
	skb_trim(skb, NLMSG_HDRLEN + len);
	error = nlmsg_multicast(group, skb, 0, GROUP, GFP_KERNEL);
	/* It reached nobody: nobody listens, or who does has no room. */
	if (error == -ESRCH)
		error = netlink_has_listeners(group, GROUP) ? -EAGAIN : -ENOTCONN;
	return error < 0 ? error : 0;
}

static bool has_listener(void)
{
	return netlink_has_listeners(group, GROUP);
}

static int open_group(void)
{
	/* Without NL_CFG_F_NONROOT_RECV, as its members hear of every flow. */
	struct netlink_kernel_cfg config = { .groups = GROUP, .input = on_message };

	group = netlink_kernel_create(&init_net, NETLINK_USERSOCK, &config);
	if (!group) {
		pr_err("ccplane: portus: another module has its netlink socket\n");
		return -EADDRINUSE;
	}
	return 0;
}

static void close_group(void)
{
	netlink_kernel_release(group);
}

const struct ccplane_portus_link ccplane_portus_netlink = {
	.open = open_group,
	.close = close_group,
	.send = send_message,
	.has_listener = has_listener,
};
