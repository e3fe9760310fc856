#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Mounts on top of mounts of remote storage: sshfs and rclone.

# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cases/remote/remote_lib.sh
. "$(dirname "$0")/remote_lib.sh"
require_fuse
PATH=$PATH:/usr/sbin

name=dsuc_gpt2_z3_offload_dp4
tag=$(tag_of $name)
lower=$tmp/lower
mkdir "$lower"
ucckpt convert "$good/$name" "$tmp/whole" >/dev/null 2>&1

mount_sshfs() {
	command -v sshfs >/dev/null && command -v sshd >/dev/null || return
	port=$(free_port)
	ssh-keygen -q -t ed25519 -N '' -f "$tmp/host" && ssh-keygen -q -t ed25519 -N '' -f "$tmp/user" || return
	cat >"$tmp/sshd.conf" <<-END
		Port $port
		ListenAddress 127.0.0.1
		HostKey $tmp/host
		AuthorizedKeysFile $tmp/user.pub
		StrictModes no
		PidFile none
		PermitRootLogin yes
		Subsystem sftp internal-sftp
	END
	[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
	"$(command -v sshd)" -D -f "$tmp/sshd.conf" -E "$tmp/sshd.err" &
	below=$!
	servers+=("$below")
	await "$port" "$below"
	sshfs -p "$port" -o "IdentityFile=$tmp/user,StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null" \
		"$(id -un)@127.0.0.1:$good/$name" "$lower" 2>"$tmp/out"
}

mount_rclone() {
	command -v rclone >/dev/null || return
	rclone --config "$tmp/rclone.conf" mount ":local:$good/$name" "$lower" 2>"$tmp/out" &
	below=$!
	servers+=("$below")
	for _ in $(seq 200); do
		mountpoint -q "$lower" && return
		sleep 0.05
	done
	return 1
}

shown=0
for kind in sshfs rclone; do
	if ! mount_$kind; then
		echo "no $kind: not shown"
		continue
	fi
	shown=$((shown + 1))
	mount_fg "$lower" || finish
	check "$kind: the view is that of the run" diff -r "$tmp/whole" "$tmp/mnt/${tag}_universal"
	kill -9 "$below"
	wait "$below" 2>/dev/null
	[ $kind = sshfs ] || timeout 20 cat "$tmp/mnt/$tag"/*_states.pt >/dev/null 2>&1
	check "$kind: what is below may die" test $? != 124
	fusermount3 -u -z "$lower"
	unmount
done
[ "$shown" -gt 0 ] || skip "neither sshfs with sshd, nor rclone"
finish
