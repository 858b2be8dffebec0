#!/bin/sh
# Make this computer the router of a virtcloud cluster. Run the script as root:
#
#   ./router up       connect to the cluster, translate the guests' addresses, and forward ports to guests.
#                     Repeat the command after a change of router.conf.
#   ./router down     disconnect, and restore all settings.
#                     Run this command also after a crash of 'up'.
#   ./router status   show the connection and the counters
#   ./router rules    print the rules of 'up' for nft(8), and change nothing
#
# The script needs Linux with iproute2, nftables and OpenVPN 2.5 or later. It changes the table 'inet virtcloud_router'
# of nftables and the kernel's settings of forwarding, and it uses the folder /run/virtcloud-router. A reboot has the
# same effect as 'down'.
set -eu

FOLDER=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
STATE=${VIRTCLOUD_ROUTER_STATE:-/run/virtcloud-router}
TABLE=virtcloud_router
SETTINGS=/proc/sys/net
CONNECT_S=60
START_S=10
PRIVATE4=0.0.0.0/8,10.0.0.0/8,100.64.0.0/10,127.0.0.0/8,169.254.0.0/16,172.16.0.0/12,192.168.0.0/16,224.0.0.0/3
PRIVATE6=::/96,::ffff:0:0/96,fc00::/7,fe80::/10,ff00::/8

fail() {
    echo "router: $*" >&2
    exit 1
}

read_configuration() {
    PROFILE='' INTERFACE='' SUBNETS='' FORWARDS='' REACHABLE=''
    [ -r "$FOLDER/router.conf" ] || fail "expected the file $FOLDER/router.conf, which 'virtcloud access router' writes"
    # shellcheck source=/dev/null
    . "$FOLDER/router.conf"
    for value in "$INTERFACE" "$SUBNETS"; do
        [ -n "$value" ] || fail "$FOLDER/router.conf: expected values of INTERFACE and SUBNETS, got an empty value"
    done
}

check_computer() {
    for program in ip nft ${PROFILE:+openvpn}; do
        command -v "$program" >/dev/null || fail "$program is missing: apt install iproute2 nftables openvpn"
    done
    former=$(cat "$STATE/folder" 2>/dev/null || echo "$FOLDER")
    [ "$former" = "$FOLDER" ] || fail "this computer is the router of another cluster: sudo $former/router down"
    for subnet in $SUBNETS; do
        used=$(ip route show root "$subnet" | grep -v " dev $INTERFACE " | head -n 1)
        [ -z "$used" ] || fail "the cluster's subnet $subnet is in use at this computer ($used): create the cluster" \
            "with another --subnet"
    done
}

# Print the words that are IPv4 ('4') or IPv6 ('6') addresses or networks, separated by commas.
select_version() {
    version=$1 selected=
    shift
    for word in "$@"; do
        case $word in *:*) found=6 ;; *) found=4 ;; esac
        [ "$found" != "$version" ] || selected=$selected${selected:+,}$word
    done
    echo "$selected"
}

print_forwards() {
    echo "$FORWARDS" | while read -r protocol port address guest_port _; do
        case $protocol:$address in
        :* | '#'*) continue ;;
        *:*:*) target="ip6 to [$address]" ;;
        *) target="ip to $address" ;;
        esac
        echo "iifname != \"$INTERFACE\" fib daddr type local $protocol dport $port counter dnat $target:$guest_port"
    done
}

# Print the rules of one version of IP. $1: ip or ip6. Lists of networks: $2 subnets, $3 reachable, $4 private.
print_guest_rules() {
    [ -n "$2" ] || return 0
    [ -z "$3" ] || echo "$1 saddr { $2 } $1 daddr { $3 } counter accept"
    echo "$1 saddr { $2 } $1 daddr { $4 } counter reject with icmpx type admin-prohibited"
    echo "$1 saddr { $2 } counter accept"
}

print_masquerade() {
    [ -z "$2" ] || echo "$1 saddr { $2 } oifname != \"$INTERFACE\" counter masquerade"
}

# If the kernel did not forward packets before, drop all forwarded packets that are not from or to the cluster.
print_other_forwarding() {
    was_on ipv4/ip_forward || echo "meta nfproto ipv4 drop"
    was_on ipv6/conf/all/forwarding || echo "meta nfproto ipv6 drop"
}

print_rules() {
    # shellcheck disable=SC2086 # lists of words
    subnets4=$(select_version 4 $SUBNETS) subnets6=$(select_version 6 $SUBNETS)
    # shellcheck disable=SC2086
    reachable4=$(select_version 4 $REACHABLE) reachable6=$(select_version 6 $REACHABLE)
    cat <<RULES
table inet $TABLE {
}
delete table inet $TABLE
table inet $TABLE {
    chain forwarded_ports {
        type nat hook prerouting priority dstnat; policy accept;
$(print_forwards)
    }
    chain translated_sources {
        type nat hook postrouting priority srcnat; policy accept;
$(print_masquerade ip "$subnets4")
$(print_masquerade ip6 "$subnets6")
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        iifname "$INTERFACE" goto from_guests
        oifname "$INTERFACE" goto to_guests
$(print_other_forwarding)
    }
    chain from_guests {
        oifname "$INTERFACE" counter drop
        tcp flags syn tcp option maxseg size set rt mtu
        ct state established,related accept
        ct state invalid counter drop
$(print_guest_rules ip "$subnets4" "$reachable4" "$PRIVATE4")
$(print_guest_rules ip6 "$subnets6" "$reachable6" "$PRIVATE6")
        counter drop
    }
    chain to_guests {
        tcp flags syn tcp option maxseg size set rt mtu
        ct state established,related accept
        ct status dnat counter accept
        counter drop
    }
    chain input {
        type filter hook input priority filter; policy accept;
        iifname != "$INTERFACE" accept
        ct state established,related accept
        icmp type echo-request accept
        icmpv6 type { echo-request, nd-neighbor-solicit, nd-neighbor-advert } accept
        counter drop
    }
}
RULES
}

# Record the settings that 'up' may change. Settings of all interfaces come first, because a change of such a setting
# also changes the settings of single interfaces.
record_settings() {
    [ ! -e "$STATE/settings" ] || return 0
    cd "$SETTINGS"
    for setting in ipv4/ip_forward ipv4/conf/all/accept_redirects ipv6/conf/all/forwarding \
        ipv6/conf/default/forwarding ipv4/conf/*/forwarding ipv6/conf/*/forwarding ipv6/conf/*/accept_ra; do
        [ ! -e "$setting" ] || echo "$(cat "$setting") $setting"
    done | awk '!recorded[$2]++' >"$STATE/settings.new"
    mv "$STATE/settings.new" "$STATE/settings"
    cd "$FOLDER"
}

was_on() {
    if [ -e "$STATE/settings" ]; then
        grep -qx "1 $1" "$STATE/settings"
    else
        [ "$(cat "$SETTINGS/$1" 2>/dev/null)" = 1 ]
    fi
}

restore_settings() {
    [ -e "$STATE/settings" ] || return 0
    while read -r value setting; do
        present=$(cat "$SETTINGS/$setting" 2>/dev/null || echo "$value") # an interface may have disappeared
        [ "$present" = "$value" ] || echo "$value" >"$SETTINGS/$setting"
    done <"$STATE/settings"
}

enable_forwarding() {
    [ "$(cat "$SETTINGS/ipv4/ip_forward")" = 1 ] || echo 1 >"$SETTINGS/ipv4/ip_forward"
    [ -e "$SETTINGS/ipv6/conf/all/forwarding" ] && ! was_on ipv6/conf/all/forwarding || return 0
    # A kernel that forwards packets ignores router advertisements unless accept_ra is 2. Without router advertisements,
    # this computer could lose its own default route.
    for setting in "$SETTINGS"/ipv6/conf/*/accept_ra; do
        case $setting in */all/* | */default/* | */"$INTERFACE"/*) continue ;; esac
        [ "$(cat "$setting")" != 1 ] || echo 2 >"$setting"
    done
    echo 1 >"$SETTINGS/ipv6/conf/all/forwarding"
}

client_runs() {
    pid=$(cat "$STATE/pid" 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = openvpn ]
}

# OpenVPN creates the file of its process ID, and writes the ID into it, shortly after the command has returned.
client_starts() {
    [ ! -s "$STATE/pid" ] && [ "$waited" -lt "$START_S" ]
}

has_interface() {
    ip link show dev "$INTERFACE" >/dev/null 2>&1
}

connect() {
    if [ -z "$PROFILE" ]; then
        has_interface || fail "expected the interface $INTERFACE of an OpenVPN client, got none: start the client first"
        return 0
    fi
    if ! client_runs; then
        ! has_interface || fail "another program uses the interface $INTERFACE: end it"
        rm -f "$STATE/pid" "$STATE/log"
        openvpn --config "$FOLDER/$PROFILE" --dev "$INTERFACE" --dev-type tap --daemon virtcloud-router \
            --log "$STATE/log" --writepid "$STATE/pid" || show_log "OpenVPN could not start"
    fi
    waited=0
    until grep -q 'Initialization Sequence Completed' "$STATE/log"; do
        client_starts || client_runs || show_log "OpenVPN ended" # in this order: the ID may appear between both checks
        [ "$waited" -lt "$CONNECT_S" ] || show_log "expected a connection within $CONNECT_S s, got none"
        sleep 1
        waited=$((waited + 1))
    done
}

show_log() {
    tail -n 5 "$STATE/log" >&2
    fail "$*"
}

disconnect() {
    client_runs || return 0
    kill "$pid"
    waited=0
    while client_runs; do
        [ "$waited" -lt 10 ] || kill -KILL "$pid"
        sleep 1
        waited=$((waited + 1))
    done
}

warn_of_firewall() {
    ! nft list chains 2>/dev/null | grep -q 'hook forward.*policy drop' ||
        echo "router: another firewall of this computer drops forwarded packets by default (nft list ruleset):" \
            "allow packets from and to $INTERFACE there" >&2
}

up() {
    read_configuration
    check_computer
    print_rules | nft --check --file - || fail "nft refused the rules: correct router.conf; nothing was changed"
    if [ ! -e "$STATE/up" ]; then
        trap 'remove; fail "not up: all changes are undone"' EXIT
        trap 'exit 1' HUP INT TERM
    fi
    mkdir -p "$STATE"
    chmod 700 "$STATE"
    echo "$FOLDER" >"$STATE/folder"
    record_settings
    print_rules | nft --file -
    enable_forwarding
    connect
    : >"$STATE/up"
    trap - EXIT
    warn_of_firewall
    echo "up: this computer is the router of cluster $CLUSTER"
}

remove() {
    trap - EXIT
    restore_settings
    disconnect
    printf 'table inet %s {\n}\ndelete table inet %s\n' "$TABLE" "$TABLE" | nft --file -
    rm -rf "$STATE"
}

status() {
    read_configuration
    if [ ! -e "$STATE/up" ]; then
        echo "down"
    elif [ -n "$PROFILE" ] && ! client_runs; then
        echo "not connected: OpenVPN ended (the profile was revoked, or the cluster ended): sudo $0 down"
    else
        echo "up since $(date -r "$STATE/up" '+%Y-%m-%d %H:%M:%S')"
        nft list table inet "$TABLE" | grep -E 'chain|counter'
    fi
}

case ${1:-} in
up | down | status) [ "$(id -u)" = 0 ] || fail "expected root's rights: sudo $0 $1" ;;
esac
case ${1:-} in
up) up ;;
down)
    remove
    echo "down: this computer is no router"
    ;;
status) status ;;
rules) read_configuration && print_rules ;;
*)
    echo "usage: $0 up | down | status | rules" >&2
    exit 2
    ;;
esac
