// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The character device in which a stock portus agent looks for ccp-kernel (`--ipc char`): /dev/ccpkp.
 *
 * A read gives one message, a write takes one. Portus waits with poll(2), and reads whether or not anything is there.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/skbuff.h>
#include <linux/uaccess.h>

#include "module.h"

/* Messages that portus has not read. */
#define MAX_UNREAD 256

static DECLARE_WAIT_QUEUE_HEAD(readers);
static struct sk_buff_head unread;
/* Under unread.lock: a portus has the device open; what it has not read, bytes. */
static bool is_open;
static size_t unread_bytes;

static struct sk_buff *next_message(void)
{
	struct sk_buff *skb;

	spin_lock_bh(&unread.lock);
	skb = __skb_dequeue(&unread);
	if (skb)
		unread_bytes -= skb->len;
	spin_unlock_bh(&unread.lock);
	return skb;
}

static int on_open(struct inode *inode, struct file *file)
{
	bool was_open;

	spin_lock_bh(&unread.lock);
	was_open = is_open;
	is_open = true;
	spin_unlock_bh(&unread.lock);
	return was_open ? -EBUSY : nonseekable_open(inode, file);
}

static int on_close(struct inode *inode, struct file *file)
{
	struct sk_buff_head old;

	/* Before another one can open it. */
	ccplane_portus_gone();
	__skb_queue_head_init(&old);
	spin_lock_bh(&unread.lock);
	skb_queue_splice_init(&unread, &old);
	unread_bytes = 0;
	is_open = false;
	spin_unlock_bh(&unread.lock);
	__skb_queue_purge(&old);
	return 0;
}

static ssize_t on_read(struct file *file, char __user *to, size_t room, loff_t *at)
{
	struct sk_buff *skb;

	while (!(skb = next_message())) {
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(readers, !skb_queue_empty_lockless(&unread)))
			return -ERESTARTSYS;
	}
	return ccplane_portus_give(skb, to, room);
}

/* The bytes of a message from user space, or an error. */
static struct sk_buff *taken(const char __user *from, size_t len, size_t limit)
{
	struct sk_buff *skb;

	if (!len || len > limit)
		return ERR_PTR(-EMSGSIZE);
	skb = alloc_skb(len, GFP_KERNEL);
	if (!skb)
		return ERR_PTR(-ENOMEM);
	if (copy_from_user(skb_put(skb, len), from, len)) {
		kfree_skb(skb);
		return ERR_PTR(-EFAULT);
	}
	return skb;
}

static ssize_t on_write(struct file *file, const char __user *from, size_t len, loff_t *at)
{
	struct sk_buff *skb = taken(from, len, CCPLANE_MAX_FROM_PORTUS_BYTES);

	if (IS_ERR(skb))
		return PTR_ERR(skb);
	ccplane_portus_hear(skb);
	return len;
}

static __poll_t on_poll(struct file *file, poll_table *table)
{
	poll_wait(file, &readers, table);
	return EPOLLOUT | EPOLLWRNORM | (skb_queue_empty_lockless(&unread) ? 0 : EPOLLIN | EPOLLRDNORM);
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = on_open,
	.release = on_close,
	.read = on_read,
	.write = on_write,
	.poll = on_poll,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "ccpkp",
	.fops = &operations,
	.mode = 0600,
};

static int send_message(const char __user *from, size_t len)
{
	struct sk_buff *skb = taken(from, len, CCPLANE_MAX_TO_PORTUS_BYTES);
	int error = 0;

	if (IS_ERR(skb))
		return PTR_ERR(skb);
	spin_lock_bh(&unread.lock);
	if (!is_open) {
		error = -ENOTCONN;
	} else if (skb_queue_len(&unread) >= MAX_UNREAD) {
		error = -EAGAIN;
	} else {
		__skb_queue_tail(&unread, skb);
		unread_bytes += len;
	}
	spin_unlock_bh(&unread.lock);
	if (error)
		kfree_skb(skb);
	else
		wake_up_interruptible(&readers);
	return error;
}

static bool has_listener(void)
{
	return READ_ONCE(is_open);
}

static size_t count_unread(void)
{
	return READ_ONCE(unread_bytes);
}

static int open_device(void)
{
	skb_queue_head_init(&unread);
	return misc_register(&device);
}

static void close_device(void)
{
	misc_deregister(&device);
}

const struct ccplane_portus_link ccplane_portus_device = {
	.open = open_device,
	.close = close_device,
	.send = send_message,
	.has_listener = has_listener,
	.unread_bytes = count_unread,
};
