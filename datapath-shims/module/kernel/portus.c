// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The device over which our agent speaks to a stock portus agent; there if the parameter `portus` asks for one of its links.
 *
 * Messages pass as they are, between the link and who has opened /dev/NAME-portus: a read gives one message of portus, or 0 bytes
 * where that portus has gone; a write sends one to it. The device is writable while portus listens. Our agent has it open, lifts
 * portus's bytecode and installs it by the main device: the kernel parses nothing of CCP's.
 */
#include <linux/compat.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/skbuff.h>
#include <linux/uaccess.h>
#include <asm/ioctls.h>

#include "module.h"

/* Messages of portus that wait to be read. */
#define MAX_WAITING 1024

static const struct ccplane_portus_link *portus;
static DECLARE_WAIT_QUEUE_HEAD(readers);
/* Under waiting.lock: the device has an opener, who reads what waits. */
static bool is_open;
/* Under waiting.lock: the portus that the opener knows has gone, and it has not read so. */
static bool has_gone;
static struct sk_buff_head waiting;

void ccplane_portus_hear(struct sk_buff *message)
{
	spin_lock_bh(&waiting.lock);
	if (is_open && skb_queue_len(&waiting) < MAX_WAITING) {
		__skb_queue_tail(&waiting, message);
		message = NULL;
	}
	spin_unlock_bh(&waiting.lock);
	if (message) {
		atomic64_inc(&ccplane_counters.dropped);
		kfree_skb(message);
		return;
	}
	wake_up_interruptible(&readers);
}

/* The next message, or NULL; *gone: portus has gone before any message that waits, which is then said. */
static struct sk_buff *next_message(bool *gone)
{
	struct sk_buff *skb = NULL;

	spin_lock_bh(&waiting.lock);
	*gone = has_gone;
	if (!has_gone)
		skb = __skb_dequeue(&waiting);
	has_gone = false;
	spin_unlock_bh(&waiting.lock);
	return skb;
}

static void forget_messages(void)
{
	struct sk_buff_head old;

	__skb_queue_head_init(&old);
	spin_lock_bh(&waiting.lock);
	skb_queue_splice_init(&waiting, &old);
	spin_unlock_bh(&waiting.lock);
	__skb_queue_purge(&old);
}

void ccplane_portus_gone(void)
{
	forget_messages();
	spin_lock_bh(&waiting.lock);
	has_gone = is_open;
	spin_unlock_bh(&waiting.lock);
	wake_up_interruptible(&readers);
}

/* Opened or not, with nothing that waits; whether it was the other before. */
static bool turn(bool open)
{
	bool turned;

	spin_lock_bh(&waiting.lock);
	turned = is_open != open;
	is_open = open;
	if (turned)
		has_gone = false;
	spin_unlock_bh(&waiting.lock);
	if (turned)
		forget_messages();
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

static bool has_something(void)
{
	return !skb_queue_empty_lockless(&waiting) || READ_ONCE(has_gone);
}

static ssize_t on_read(struct file *file, char __user *to, size_t room, loff_t *at)
{
	struct sk_buff *skb;
	bool gone;

	while (!(skb = next_message(&gone)) && !gone) {
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(readers, has_something()))
			return -ERESTARTSYS;
	}
	return skb ? ccplane_portus_give(skb, to, room) : 0;
}

ssize_t ccplane_portus_give(struct sk_buff *message, char __user *to, size_t room)
{
	ssize_t len = message->len;

	if (message->len > room)
		len = -EMSGSIZE;
	else if (copy_to_user(to, message->data, message->len))
		len = -EFAULT;
	consume_skb(message);
	return len;
}

static ssize_t on_write(struct file *file, const char __user *from, size_t len, loff_t *at)
{
	int error = portus->send(from, len);

	return error ? error : (ssize_t)len;
}

static __poll_t on_poll(struct file *file, poll_table *table)
{
	__poll_t ready = 0;

	poll_wait(file, &readers, table);
	if (has_something())
		ready |= EPOLLIN | EPOLLRDNORM;
	if (portus->has_listener())
		ready |= EPOLLOUT | EPOLLWRNORM;
	return ready;
}

/* TIOCOUTQ, as of sockets: the bytes that portus has not read. */
static long on_ioctl(struct file *file, unsigned int request, unsigned long argument)
{
	if (request != TIOCOUTQ || !portus->unread_bytes)
		return -ENOTTY;
	return put_user((int)portus->unread_bytes(), (int __user *)argument);
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = on_open,
	.release = on_close,
	.read = on_read,
	.write = on_write,
	.poll = on_poll,
	.unlocked_ioctl = on_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static char device_name[TCP_CA_NAME_MAX + sizeof("-portus")];
static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = device_name,
	.fops = &operations,
	.mode = 0600,
};

int ccplane_portus_init(const char *name, const struct ccplane_portus_link *link)
{
	int error;

	skb_queue_head_init(&waiting);
	snprintf(device_name, sizeof(device_name), "%s-portus", name);
	portus = link;
	error = link->open();
	if (error)
		return error;
	error = misc_register(&device);
	if (error)
		link->close();
	return error;
}

void ccplane_portus_exit(void)
{
	misc_deregister(&device);
	portus->close();
}
