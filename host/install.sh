#!/bin/sh
# Prepares a fresh Debian host (12 or later) for instances of one cell. Safe to run again; run it again after an upgrade of Headgate.
# Usage and the reasons: --help and README.md.
set -eu
umask 022
LC_ALL=C
export LC_ALL

usage() {
	cat <<-'END'
		install.sh --instance FILE --egress any|CIDR[,CIDR...] [--ports LOW-HIGH] [--acme-email ADDRESS] [--root DIR]

		  --instance FILE   the executable that runs one instance; it reads the environment that zds-host renders (README.md, "The instance")
		  --egress LIST     what instances may reach besides this host: networks in CIDR notation, or "any". An instance needs its PLC directory,
		                    relays and mail server; everything that is not listed is cut off
		  --ports LOW-HIGH  port range of the cell, the same as the function's PORT_RANGE (default 20000-29999)
		  --acme-email A    address that the certificate authority may write to
		  --root DIR        lay the files under DIR and start nothing (for images and tests)
	END
}
stop() {
	printf 'install.sh: %s\n' "$1" >&2
	exit "${2:-1}"
}
say() { printf 'install.sh: %s\n' "$1"; }

HERE=$(cd "$(dirname "$0")" && pwd)
root='' instance='' egress='' ports=20000-29999 email=''
while [ $# -gt 0 ]; do
	case $1 in
	--help | -h)
		usage
		exit 0
		;;
	--instance | --egress | --ports | --acme-email | --root)
		[ $# -ge 2 ] || stop "$1 needs a value" 2
		case $1 in
		--instance) instance=$2 ;;
		--egress) egress=$2 ;;
		--ports) ports=$2 ;;
		--acme-email) email=$2 ;;
		--root) root=${2%/} ;;
		esac
		shift 2
		;;
	*) stop "unknown option $1; see --help" 2 ;;
	esac
done

# ---- everything that is wrong, at once, before anything is touched

faults=
fault() { faults="$faults
  - $1"; }

if [ -z "$instance" ]; then
	fault "--instance is missing: the executable that runs one instance"
elif [ ! -x "$instance" ] || [ -d "$instance" ]; then
	fault "--instance $instance is no executable file"
fi
case $instance in /* | '') ;; *) fault "--instance must be an absolute path" ;; esac
case $egress in
'') fault "--egress is missing: networks that instances may reach, or any" ;;
any) ;;
*[!0-9a-f.:/,]*) fault "--egress must be any, or networks like 192.0.2.0/24,2001:db8::/32" ;;
esac
low=${ports%%-*} high=${ports#*-}
case $ports in
*[!0-9-]* | -* | *- | *-*-*) fault "--ports must look like 20000-29999" ;;
*-*)
	if [ "${#low}" -gt 5 ] || [ "${#high}" -gt 5 ] || [ "$low" -lt 1024 ] || [ "$high" -gt 65535 ] || [ "$low" -ge "$high" ]; then
		fault "--ports must lie within 1024-65535, the lower one first"
	elif [ "$high" -ge 32768 ]; then
		fault "--ports must end below 32768, where the kernel takes its own ports from"
	fi
	;;
*) fault "--ports must look like 20000-29999" ;;
esac
case $email in
'' | ?*@?*) ;;
*) fault "--acme-email is no address" ;;
esac
case $email in *[!A-Za-z0-9@._+-]*) fault "--acme-email has characters other than A-Za-z0-9@._+-" ;; esac
if [ -z "$root" ]; then
	[ "$(id -u)" = 0 ] || fault "run it as root"
	[ -d /run/systemd/system ] || fault "this host does not run systemd"
	for tool in caddy:caddy curl:curl flock:util-linux ss:iproute2 timeout:coreutils awk:mawk nft:nftables; do
		command -v "${tool%%:*}" >/dev/null 2>&1 || fault "${tool%%:*} is missing: apt-get install ${tool#*:}"
	done
fi
[ -z "$faults" ] || stop "nothing was changed, because:$faults" 2

# ---- files

put() { # MODE SOURCE TARGET
	mkdir -p "$root${3%/*}"
	install -m "$1" "$2" "$root$3"
}
write() { # MODE TARGET, content on standard input
	mkdir -p "$root${2%/*}"
	cat >"$root$2.new"
	chmod "$1" "$root$2.new"
	mv -f "$root$2.new" "$root$2"
}

put 0755 "$HERE/zds-host" /usr/local/sbin/zds-host
put 0644 "$HERE/systemd/zds@.service" /etc/systemd/system/zds@.service
put 0644 "$HERE/systemd/zds@.service.d/10-hardening.conf" /etc/systemd/system/zds@.service.d/10-hardening.conf
put 0644 "$HERE/systemd/caddy.service.d/10-zds.conf" /etc/systemd/system/caddy.service.d/10-zds.conf
put 0644 "$HERE/systemd/zds-firewall.service" /etc/systemd/system/zds-firewall.service

{
	printf '# Written by install.sh.\n[Service]\nSocketBindAllow=tcp:%s\n' "$ports"
	if [ "$egress" != any ]; then
		printf 'IPAddressDeny=any\nIPAddressAllow=localhost\n'
		printf '%s\n' "$egress" | tr , '\n' | sed 's/^/IPAddressAllow=/'
	fi
} | write 0644 /etc/systemd/system/zds@.service.d/20-cell.conf

# An instance listens on every address of the host and cannot be told otherwise; without this rule strangers reach it past Caddy.
write 0644 /etc/zds/firewall.nft <<END
# Written by install.sh. Only this host itself may talk to the instances.
add table inet zds
delete table inet zds
table inet zds {
	chain input {
		type filter hook input priority -10; policy accept;
		iifname != "lo" tcp dport $ports drop
	}
}
END

# zds-host and Caddy read it; an operator's own values stay.
[ -e "$root/etc/zds/host.env" ] || write 0644 /etc/zds/host.env <<'END'
# Settings of zds-host and of Caddy's configuration (README.md, "Settings"). Lines of NAME=value, plain characters only.
END
[ -e "$root/etc/zds/common.env" ] || write 0600 /etc/zds/common.env <<'END'
# Environment of every instance of this host: PDS_DID_PLC_URL, PDS_EMAIL_SMTP_URL, PDS_EMAIL_FROM_ADDRESS, PDS_CRAWLERS, ...
END

mkdir -p "$root/usr/local/lib/zds" "$root/etc/caddy/maps" "$root/var/lib/zds"
ln -sfn "$instance" "$root/usr/local/lib/zds/instance"

caddyfile=$root/etc/caddy/Caddyfile
if [ -e "$caddyfile" ] && ! grep -q zds_instances "$caddyfile" && [ ! -e "$caddyfile.before-zds" ]; then
	cp -p "$caddyfile" "$caddyfile.before-zds"
	say "the Caddyfile that was there is kept as /etc/caddy/Caddyfile.before-zds"
fi
put 0644 "$HERE/caddy/Caddyfile" /etc/caddy/Caddyfile
if [ -n "$email" ]; then
	printf 'email %s\n' "$email" | write 0644 /etc/caddy/zds-global-email.caddy
fi
version=$(caddy version 2>/dev/null | sed -n 's/^v\{0,1\}\([0-9]*\)\.\([0-9]*\).*/\1 \2/p' || :)
if [ -n "$version" ] && { [ "${version% *}" -gt 2 ] || { [ "${version% *}" = 2 ] && [ "${version#* }" -ge 7 ]; }; }; then
	printf 'stream_close_delay 5m\n' | write 0644 /etc/caddy/zds-stream.caddy
else
	rm -f "$root/etc/caddy/zds-stream.caddy"
	say "this Caddy cannot keep websockets through a reload (it needs 2.7): creating or retiring a domain reconnects the relays of all"
fi

if [ -n "$root" ]; then
	say "files are laid under $root; nothing was started"
	exit 0
fi

# ---- start

caddy validate --config /etc/caddy/Caddyfile --adapter caddyfile >/dev/null 2>&1 ||
	stop "Caddy refuses /etc/caddy/Caddyfile; see: caddy validate --config /etc/caddy/Caddyfile"
systemctl daemon-reload
systemctl enable --now zds-firewall.service
systemctl restart zds-firewall.service
systemctl enable caddy.service
systemctl reload-or-restart caddy.service
command -v amazon-ssm-agent >/dev/null 2>&1 || [ -d /snap/amazon-ssm-agent ] ||
	say "the SSM agent is not installed yet: register this host as a managed node, its id is CELL_NODE_ID"
answer=$(zds-host show all 2>/dev/null) || stop "zds-host does not answer; run: zds-host show all"
say "ready: $answer"
