// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * /dev/ccplane: who opens it is an agent of its network namespace.
 *
 * The first read gives HELLO. A write carries whole frames, which are carried out before it returns. Answers and events lie in the
 * ring, which the agent maps, or reads frame by frame. It is readable while something lies there.
 */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/nsproxy.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "module.h"

static int on_open(struct inode *inode, struct file *file)
{
	struct net *net = current->nsproxy->net_ns;
	struct ccplane_agent *agent;

	if (!ns_capable(net->user_ns, CAP_NET_ADMIN))
		return -EPERM;
	/* Said here, where it is understood; who comes at the same time is refused when it says WELCOME. */
	if (ccplane_netns_has_agent(net))
		return -EBUSY;
	agent = ccplane_agent_open(net);
	if (!agent)
		return -ENOMEM;
	file->private_data = agent;
	return nonseekable_open(inode, file);
}

static int on_close(struct inode *inode, struct file *file)
{
	ccplane_agent_close(file->private_data);
	return 0;
}

/* The next frame into agent->frame; 0 if there is none. Under agent.mutex. */
static ssize_t next_frame(struct ccplane_agent *agent)
{
	ssize_t len;

	if (!agent->said_hello) {
		agent->said_hello = true;
		return ccplane_say_hello(agent, ccplane_tcp.name);
	}
	/* Whoever maps the ring reads there, and may have written anything. */
	mutex_lock(&agent->ring_mutex);
	len = agent->mapped ? -EINVAL : ccplane_ring_read(&agent->ring, agent->frame);
	mutex_unlock(&agent->ring_mutex);
	return len;
}

/* As many whole frames as surely fit; bytes of them. Under agent.mutex. */
static ssize_t read_frames(struct ccplane_agent *agent, char __user *to, size_t room)
{
	size_t done = 0;
	ssize_t len;

	while (room - done >= CCPLANE_MAX_FRAME_BYTES) {
		len = next_frame(agent);
		if (len <= 0)
			return done ? done : len;
		if (copy_to_user(to + done, agent->frame, len))
			return -EFAULT;
		done += len;
		ccplane_list_go_on(agent);
	}
	return done;
}

static ssize_t on_read(struct file *file, char __user *to, size_t room, loff_t *at)
{
	struct ccplane_agent *agent = file->private_data;
	ssize_t len;

	/* A frame that does not fit would be lost. */
	if (room < CCPLANE_MAX_FRAME_BYTES)
		return -EINVAL;
	for (;;) {
		if (mutex_lock_interruptible(&agent->mutex))
			return -EINTR;
		len = read_frames(agent, to, room);
		mutex_unlock(&agent->mutex);
		if (len)
			return len;
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(agent->wait, !ccplane_ring_is_empty(&agent->ring)))
			return -ERESTARTSYS;
	}
}

static ssize_t on_write(struct file *file, const char __user *from, size_t len, loff_t *at)
{
	struct ccplane_agent *agent = file->private_data;
	ssize_t taken;

	if (!len || len > CCPLANE_MAX_FRAME_BYTES)
		return -EMSGSIZE;
	if (mutex_lock_interruptible(&agent->mutex))
		return -EINTR;
	ccplane_list_go_on(agent);
	taken = copy_from_user(agent->command, from, len) ? -EFAULT : ccplane_agent_carry_out(agent, agent->command, len);
	mutex_unlock(&agent->mutex);
	return taken;
}

static __poll_t on_poll(struct file *file, poll_table *table)
{
	struct ccplane_agent *agent = file->private_data;
	__poll_t ready = EPOLLOUT | EPOLLWRNORM;

	poll_wait(file, &agent->wait, table);
	if (!READ_ONCE(agent->said_hello) || !ccplane_ring_is_empty(&agent->ring))
		ready |= EPOLLIN | EPOLLRDNORM;
	return READ_ONCE(agent->corrupt) ? ready | EPOLLERR : ready;
}

static int on_mmap(struct file *file, struct vm_area_struct *area)
{
	struct ccplane_agent *agent = file->private_data;
	int error;

	/* Not agent.mutex, under which user memory is copied and so mmap_lock taken. */
	if (mutex_lock_interruptible(&agent->ring_mutex))
		return -EINTR;
	/* What was read already would be read again. */
	if (area->vm_pgoff || area->vm_end - area->vm_start != agent->ring.bytes || READ_ONCE(agent->attached))
		error = -EINVAL;
	else
		error = remap_vmalloc_range(area, agent->ring.words, 0);
	if (!error)
		WRITE_ONCE(agent->mapped, true);
	mutex_unlock(&agent->ring_mutex);
	return error;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = on_open,
	.release = on_close,
	.read = on_read,
	.write = on_write,
	.poll = on_poll,
	.mmap = on_mmap,
};

/* /sys/class/misc/NAME/statistics: a name and a number a line. */
static ssize_t statistics_show(struct device *device, struct device_attribute *attribute, char *to)
{
	const struct ccplane_counters *c = &ccplane_counters;

	return sysfs_emit(to,
			  "flows %d\nagents %d\nprograms %d\nreports %lld\nevents_dropped %lld\ncommands_refused %lld\n"
			  "malformed_writes %lld\nhandovers_to_native %lld\ntable_full %lld\n",
			  atomic_read(&c->flows), atomic_read(&c->agents), atomic_read(&c->programs),
			  (s64)atomic64_read(&c->reports), (s64)atomic64_read(&c->dropped), (s64)atomic64_read(&c->refused),
			  (s64)atomic64_read(&c->malformed), (s64)atomic64_read(&c->natives), (s64)atomic64_read(&c->table_full));
}
static DEVICE_ATTR_RO(statistics);

static struct attribute *device_attrs[] = { &dev_attr_statistics.attr, NULL };
ATTRIBUTE_GROUPS(device);

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.fops = &operations,
	.mode = 0600,
};

int ccplane_device_init(const char *name)
{
	device.name = name;
	device.groups = device_groups;
	return misc_register(&device);
}

void ccplane_device_exit(void)
{
	misc_deregister(&device);
}
