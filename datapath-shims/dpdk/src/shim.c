// What DPDK has only as macros and inline functions, and the few structures that Rust need not know.
// Errors are negative errno values.
#include <dlfcn.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>

enum { SUM_IP = 1, SUM_UDP = 2, IS_V6 = 4, SUM_BAD = 8, IS_CUT = 16 };  // as in ffi.rs
enum { CACHE = 256, DESCRIPTORS = 1024 };

struct ccpd_info { uint16_t rx_queues, tx_queues, mtu; uint8_t mac[6], rx_offloads, tx_offloads; };

// DPDK's log goes here: whoever meets an error takes it from here. What does not fit is dropped.
static char log_text[4096];
static FILE *log_file;

// What the libraries below af_xdp say: their warnings go to the log, too, instead of to stderr.
static int note(int level, const char *format, va_list arguments) {
  return level == 0 && log_file ? vfprintf(log_file, format, arguments) : 0;
}

static void redirect(const char *library, const char *setter) {
  void *loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  void *(*set)(int (*)(int, const char *, va_list)) = NULL;
  if (loaded) *(void **)&set = dlsym(loaded, setter);
  if (set) set(note);
}

int ccpd_start(int argc, char **argv) {
  log_file = fmemopen(log_text, sizeof log_text, "w");
  if (log_file && !setvbuf(log_file, NULL, _IONBF, 0)) rte_openlog_stream(log_file);
  int failed = rte_eal_init(argc, argv) < 0 ? -rte_errno : 0;
  redirect("libbpf.so.1", "libbpf_set_print");
  redirect("libxdp.so.1", "libxdp_set_print");
  return failed;
}

void ccpd_log_take(char *text, size_t bytes) {
  snprintf(text, bytes, "%.*s", (int)sizeof log_text - 1, log_text);
  if (log_file) rewind(log_file);
  memset(log_text, 0, sizeof log_text);
}

int ccpd_interface_mtu(const char *name) {
  struct ifreq request = {0};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  int failed = fd < 0 || ioctl(fd, SIOCGIFMTU, &request);
  if (fd >= 0) close(fd);
  return failed ? -1 : request.ifr_mtu;
}

// By a socket of the interface's namespace. Its flag for a carrier may be a second late, what ethtool says is not.
int ccpd_interface_runs(int fd, const char *name) {
  struct ifreq request = {0};
  struct ethtool_value link = {.cmd = ETHTOOL_GLINK};
  strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  request.ifr_data = (void *)&link;
  if (!ioctl(fd, SIOCETHTOOL, &request)) return link.data != 0;
  return ioctl(fd, SIOCGIFFLAGS, &request) == 0 && request.ifr_flags & IFF_UP && request.ifr_flags & IFF_RUNNING;
}

int ccpd_info(uint16_t port, struct ccpd_info *to) {
  struct rte_eth_dev_info info;
  struct rte_ether_addr mac;
  int failed = rte_eth_dev_info_get(port, &info);
  if (failed || (failed = rte_eth_macaddr_get(port, &mac)) || (failed = rte_eth_dev_get_mtu(port, &to->mtu))) return failed;
  to->rx_queues = info.max_rx_queues, to->tx_queues = info.max_tx_queues;
  memcpy(to->mac, mac.addr_bytes, 6);
  to->rx_offloads = (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_IPV4_CKSUM ? SUM_IP : 0) | (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_UDP_CKSUM ? SUM_UDP : 0);
  to->tx_offloads = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_IPV4_CKSUM ? SUM_IP : 0) | (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_UDP_CKSUM ? SUM_UDP : 0);
  return 0;
}

int ccpd_configure(uint16_t port, uint16_t queues) {
  struct rte_eth_conf conf = {0};
  struct rte_eth_dev_info info;
  int failed = rte_eth_dev_info_get(port, &info);
  if (failed) return failed;
  conf.rxmode.offloads = info.rx_offload_capa & (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM);
  conf.txmode.offloads = info.tx_offload_capa & (RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM);
  conf.rx_adv_conf.rss_conf.rss_hf = info.flow_type_rss_offloads & (RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP);
  conf.rxmode.mq_mode = queues > 1 && conf.rx_adv_conf.rss_conf.rss_hf ? RTE_ETH_MQ_RX_RSS : RTE_ETH_MQ_RX_NONE;
  return rte_eth_dev_configure(port, queues, queues, &conf);
}

int ccpd_queue(uint16_t port, uint16_t queue, unsigned mbufs, uint16_t room, struct rte_mempool **pool) {
  char name[RTE_MEMPOOL_NAMESIZE];
  uint16_t rx = DESCRIPTORS, tx = DESCRIPTORS;
  int socket = rte_eth_dev_socket_id(port);
  snprintf(name, sizeof name, "ccp%u_%u", port, queue);
  *pool = rte_pktmbuf_pool_create(name, mbufs, CACHE, 0, RTE_PKTMBUF_HEADROOM + room, socket);
  if (!*pool) return -rte_errno;
  int failed = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx);
  if (failed || (failed = rte_eth_rx_queue_setup(port, queue, rx, socket, NULL, *pool))) return failed;
  return rte_eth_tx_queue_setup(port, queue, tx, socket, NULL);
}

int ccpd_run(uint16_t port) {
  int failed = rte_eth_dev_start(port);
  // Solicitations come to groups.
  if (!failed && rte_eth_allmulticast_enable(port)) rte_eth_promiscuous_enable(port);
  return failed;
}

void ccpd_close(uint16_t port) {
  rte_eth_promiscuous_disable(port);
  rte_eth_dev_stop(port);
  rte_eth_dev_close(port);
}

int ccpd_link_up(uint16_t port) {
  struct rte_eth_link link;
  return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

unsigned ccpd_receive(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint8_t **data, uint16_t *bytes, uint8_t *hints, unsigned n) {
  unsigned got = rte_eth_rx_burst(port, queue, mbufs, n);
  for (unsigned i = 0; i < got; i++) {
    uint64_t ip = mbufs[i]->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK, l4 = mbufs[i]->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;
    data[i] = rte_pktmbuf_mtod(mbufs[i], uint8_t *), bytes[i] = rte_pktmbuf_data_len(mbufs[i]);
    hints[i] = (ip == RTE_MBUF_F_RX_IP_CKSUM_GOOD ? SUM_IP : 0) | (l4 == RTE_MBUF_F_RX_L4_CKSUM_GOOD ? SUM_UDP : 0)
      | (ip == RTE_MBUF_F_RX_IP_CKSUM_BAD || l4 == RTE_MBUF_F_RX_L4_CKSUM_BAD ? SUM_BAD : 0) | (mbufs[i]->nb_segs > 1 ? IS_CUT : 0);
  }
  return got;
}

int ccpd_alloc(struct rte_mempool *pool, struct rte_mbuf **mbufs, uint8_t **data, unsigned n) {
  int failed = rte_pktmbuf_alloc_bulk(pool, mbufs, n);
  for (unsigned i = 0; !failed && i < n; i++) data[i] = rte_pktmbuf_mtod(mbufs[i], uint8_t *);
  return failed;
}

void ccpd_free(struct rte_mbuf **mbufs, unsigned n) { rte_pktmbuf_free_bulk(mbufs, n); }

void ccpd_dress(struct rte_mbuf *mbuf, uint16_t bytes, uint8_t hints) {
  mbuf->data_len = bytes, mbuf->pkt_len = bytes;
  mbuf->l2_len = 14, mbuf->l3_len = hints & IS_V6 ? 40 : 20;
  mbuf->ol_flags = !(hints & (SUM_IP | SUM_UDP)) ? 0 : (hints & IS_V6 ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4)
    | (hints & SUM_IP ? RTE_MBUF_F_TX_IP_CKSUM : 0) | (hints & SUM_UDP ? RTE_MBUF_F_TX_UDP_CKSUM : 0);
}

unsigned ccpd_send(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, unsigned n) { return rte_eth_tx_burst(port, queue, mbufs, n); }
