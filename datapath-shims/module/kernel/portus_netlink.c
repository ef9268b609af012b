// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The netlink group in which a stock portus agent listens for a CCP datapath; there if the parameter `portus` asks for it.
 *
 * Messages pass as they are, between that group and who has opened /dev/NAME-portus: a read gives one message of portus, a write
 * multicasts one to it. The device is writable while portus listens. Our agent has it open, lifts portus's bytecode and
 * installs it by the main device: the kernel parses nothing of CCP's.
 */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/netlink.h>
#include <linux/poll.h>
#include <linux/skbuff.h>
#include <linux/uaccess.h>
#include <net/net_namespace.h>
#include <net/netlink.h>
#include <net/sock.h>

#include "module.h"

#define GROUP 22
/* Portus receives into 1024 bytes. */
#define MAX_TO_PORTUS_BYTES (1024 - NLMSG_HDRLEN)
#define MAX_FROM_PORTUS_BYTES (1 << 16)
/* Messages of portus that wait to be read. */
#define MAX_WAITING 1024

static struct sock *group;
static DECLARE_WAIT_QUEUE_HEAD(readers);
/* Under waiting.lock: the device has an opener, who reads what waits. */
static bool is_open;
static struct sk_buff_head waiting;

/* Takes a message from any process that may speak as portus. In the sender's context. */
static void on_message(struct sk_buff *skb)
{
	const struct nlmsghdr *header = nlmsg_hdr(skb);
	struct sk_buff *copy;

	if (!netlink_capable(skb, CAP_NET_ADMIN))
		return;
	if (skb->len <= NLMSG_HDRLEN || header->nlmsg_len <= NLMSG_HDRLEN || header->nlmsg_len > skb->len ||
	    header->nlmsg_len > MAX_FROM_PORTUS_BYTES) {
		atomic64_inc(&ccplane_counters.malformed);
		return;
	}
	/* Of its own: the sender's counts as long as it lives, and on the group's socket. */
	copy = skb_copy(skb, GFP_KERNEL);
	if (!copy)
		return;
	spin_lock_bh(&waiting.lock);
	if (is_open && skb_queue_len(&waiting) < MAX_WAITING) {
		__skb_queue_tail(&waiting, copy);
		copy = NULL;
	}
	spin_unlock_bh(&waiting.lock);
	if (copy) {
		atomic64_inc(&ccplane_counters.dropped);
		kfree_skb(copy);
		return;
	}
	wake_up_interruptible(&readers);
}

static struct sk_buff *next_message(void)
{
	struct sk_buff *skb;

	spin_lock_bh(&waiting.lock);
	skb = __skb_dequeue(&waiting);
	spin_unlock_bh(&waiting.lock);
	return skb;
}

/* Opened or not, with nothing that waits; whether it was the other before. */
static bool turn(bool open)
{
	struct sk_buff *skb;
	bool turned;

	spin_lock_bh(&waiting.lock);
	turned = is_open != open;
	is_open = open;
	spin_unlock_bh(&waiting.lock);
	while (turned && (skb = next_message()))
		kfree_skb(skb);
	return turned;
}

static int on_open(struct inode *inode, struct file *file)
{
	if (!turn(true))
		return -EBUSY;
	return nonseekable_open(inode, file);
}

static int on_close(struct inode *inode, struct file *file)
{
	turn(false);
	return 0;
}

static ssize_t on_read(struct file *file, char __user *to, size_t room, loff_t *at)
{
	struct sk_buff *skb = next_message();
	ssize_t len;

	while (!skb) {
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(readers, !skb_queue_empty_lockless(&waiting)))
			return -ERESTARTSYS;
		skb = next_message();
	}
	len = nlmsg_len(nlmsg_hdr(skb));
	if ((size_t)len > room)
		len = -EMSGSIZE;
	else if (copy_to_user(to, nlmsg_data(nlmsg_hdr(skb)), len))
		len = -EFAULT;
	consume_skb(skb);
	return len;
}

static ssize_t on_write(struct file *file, const char __user *from, size_t len, loff_t *at)
{
	struct nlmsghdr *header;
	struct sk_buff *skb;
	int error;

	if (!len || len > MAX_TO_PORTUS_BYTES)
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
	return error < 0 ? error : (ssize_t)len;
}

static __poll_t on_poll(struct file *file, poll_table *table)
{
	__poll_t ready = 0;

	poll_wait(file, &readers, table);
	if (!skb_queue_empty_lockless(&waiting))
		ready |= EPOLLIN | EPOLLRDNORM;
	if (netlink_has_listeners(group, GROUP))
		ready |= EPOLLOUT | EPOLLWRNORM;
	return ready;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = on_open,
	.release = on_close,
	.read = on_read,
	.write = on_write,
	.poll = on_poll,
};

static char device_name[TCP_CA_NAME_MAX + sizeof("-portus")];
static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = device_name,
	.fops = &operations,
	.mode = 0600,
};

int ccplane_portus_init(const char *name)
{
	/* Without NL_CFG_F_NONROOT_RECV, as its members hear of every flow. */
	struct netlink_kernel_cfg config = { .groups = GROUP, .input = on_message };
	int error;

	skb_queue_head_init(&waiting);
	snprintf(device_name, sizeof(device_name), "%s-portus", name);
	group = netlink_kernel_create(&init_net, NETLINK_USERSOCK, &config);
	if (!group) {
		pr_err("ccplane: portus: another module has its netlink socket\n");
		return -EADDRINUSE;
	}
	error = misc_register(&device);
	if (error)
		netlink_kernel_release(group);
	return error;
}

void ccplane_portus_exit(void)
{
	misc_deregister(&device);
	netlink_kernel_release(group);
}
