#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checkpoints of an HTTP server: nginx lists and serves them, with and without TLS.

# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cases/remote/remote_lib.sh
. "$(dirname "$0")/remote_lib.sh"
require_curl
PATH=$PATH:/usr/sbin
require nginx

name=dsuc_gpt2_z3_offload_dp4
tag=$(tag_of $name)
mkdir "$tmp/www"
cp -r "$good/$name" "$tmp/www/run"
cp -r "$good/$name" "$tmp/www/odd name+%41"
cp -r "$good/z3_nvme_dp2" "$tmp/www/nvme"
for n in 0 1; do
	mkdir -p "$tmp/www/n$n/$tag"
done
cp "$tmp/www/run/$tag"/*_rank_[01]_* "$tmp/www/n0/$tag"
cp "$tmp/www/run/$tag"/*_rank_[23]_* "$tmp/www/n1/$tag"
(cd "$tmp/www/run" && find . -type f -printf '%P\n') >"$tmp/manifest"

plain=$(free_port)
tls=$(free_port)
printf 'reader:{PLAIN}secret7\n' >"$tmp/users"
cat >"$tmp/servers.conf" <<-END
	limit_req_zone \$binary_remote_addr zone=few:1m rate=20r/s;
	server {
		listen 127.0.0.1:$plain;
		location /few/ {
			alias $tmp/www/run/;
			limit_req zone=few burst=4 nodelay;
			limit_req_status 429;
		}
		autoindex on;
		location /unlisted/ { alias $tmp/www/run/; autoindex off; }
		location /private/ {
			alias $tmp/www/run/;
			auth_basic private;
			auth_basic_user_file $tmp/users;
		}
		location /token/ {
			alias $tmp/www/run/;
			if (\$arg_sig != "secret8") { return 403; }
		}
		location /better/ { return 302 https://127.0.0.1:$tls\$request_uri; }
		location /slow/ { alias $tmp/www/run/; limit_rate 400k; }
	}
END
tls_ok=
if command -v openssl >/dev/null; then
	openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test \
		-addext basicConstraints=critical,CA:TRUE -keyout "$tmp/ca.key" -out "$tmp/ca.pem" 2>/dev/null
	openssl req -newkey rsa:2048 -nodes -subj /CN=127.0.0.1 -keyout "$tmp/tls.key" -out "$tmp/tls.csr" 2>/dev/null
	echo 'subjectAltName=IP:127.0.0.1' >"$tmp/san"
	openssl x509 -req -in "$tmp/tls.csr" -CA "$tmp/ca.pem" -CAkey "$tmp/ca.key" -days 2 -CAcreateserial \
		-extfile "$tmp/san" -out "$tmp/tls.pem" 2>/dev/null && tls_ok=yes
fi
[ -z "$tls_ok" ] || cat >>"$tmp/servers.conf" <<-END
	server {
		listen 127.0.0.1:$tls ssl;
		ssl_certificate $tmp/tls.pem;
		ssl_certificate_key $tmp/tls.key;
		autoindex on;
		location /better/ { alias $tmp/www/run/; }
		location /worse/ { return 302 http://127.0.0.1:$plain/run/; }
	}
END
start_nginx "$plain"
http=http://127.0.0.1:$plain
says() { grep -q -- "$1" "$tmp/out"; }
# fetches_once FILE COMMAND...: check that at most a tenth more bytes are sent than the file has.
fetches_once() {
	local before size

	before=$(sent "$1")
	size=$(stat -c %s "$tmp/www/$1")
	"${@:2}" >/dev/null || return
	echo "$(($(sent "$1") - before)) bytes sent of the $size of $1"
	[ $((10 * ($(sent "$1") - before))) -le $((11 * size)) ]
}
same() { ucckpt "${@:2}" diff "$1" "$good/$name" >"$tmp/out" 2>&1; }

# ucckpt reads the server.
check "diff reads a server's run" same "$http/run"
check "and its tag" same "$http/run/$tag/"
check "names may need encoding" same "$http/odd%20name+%2541"
check "check reads everything" ucckpt check --data "$http/run" >/dev/null
ucckpt convert "$good/$name" "$tmp/local" >/dev/null
check "convert writes" ucckpt convert "$http/run" "$tmp/far" >/dev/null
check "the same tree" diff -r "$tmp/local" "$tmp/far"
check "extract writes" ucckpt extract "$http/run" "${tag}_universal" "$tmp/extracted" >/dev/null
check "the same tree" diff -r "$tmp/local" "$tmp/extracted/${tag}_universal"
check "roots may be servers" same "{$http/n0,$http/n1}"
check "and directories" same "{$http/n0,$tmp/www/n1}"
check "tensors on NVMe are found" ucckpt diff "$http/nvme" "$good/z3_nvme_dp2" >/dev/null
check "a manifest does without a list" same "$http/unlisted" -o "manifest=$tmp/manifest"
check "what is slow is right" same "$http/slow"
check "a server that limits requests is asked again" same "$http/few"
check "which it refused some of" test "$(count ' 429 ')" -gt 0
same "$http/slow" &
reader=$!
sleep 0.3
stop_server "$nginx"
sleep 0.3
start_nginx "$plain"
wait "$reader"
check "a server that ends in the middle and comes back is read" test $? = 0
if ucckpt pack "$good/$name/$tag" -o "$tmp/www/$tag.ucpack" >/dev/null 2>&1; then
	check "a pack is read in place" same "$http/$tag.ucpack"
	cp "$tmp/www/$tag.ucpack" "$tmp/www/n0/other.ucpack"
	check "two packs of servers are compared" ucckpt diff "$http/$tag.ucpack" "$http/n0/other.ucpack"

	# 17 MB in 270 blocks of 64 KiB.
	mkdir "$tmp/large"
	"$top_builddir/tests/programs/mkrun" "$tmp/large" 2 700000 2 || fail mkrun
	ucckpt pack "$tmp/large/global_step4" -o "$tmp/www/large.ucpack" >/dev/null 2>&1 || fail "pack"
	ucckpt convert "$tmp/large/global_step4" "$tmp/large/local" >/dev/null
	before=$(count ' 206 ')
	check "a large pack is converted" ucckpt convert "$http/large.ucpack" "$tmp/large/far" >/dev/null
	asked=$(($(count ' 206 ') - before))
	check "to the same tree" diff -r "$tmp/large/local" "$tmp/large/far"
	check "by requests for many blocks each" test "$asked" -lt 120
	large=$http/large.ucpack
	check "check fetches nothing twice" fetches_once large.ucpack ucckpt check --data "$large"
	check "nor does diff" fetches_once large.ucpack ucckpt diff "$large" "$tmp/large/global_step4"
	check "nor convert" fetches_once large.ucpack ucckpt convert "$large" "$tmp/large/again"
fi

ucckpt info "$http/none" >"$tmp/out" 2>&1
check "what is not there is named" says "$http/none: cannot open: No such file"
ucckpt info "$http/unlisted" >"$tmp/out" 2>&1
check "a list that is refused is named with its status" says "$http/unlisted: HTTP status 403"
ucckpt info http://127.0.0.1:1/run >"$tmp/out" 2>&1
check "so is a server that is not there" says "http://127.0.0.1:1/run: .*onnect"

# Secrets stay hidden.
withuser=http://reader:secret7@127.0.0.1:$plain/private
cp "$tmp/manifest" "$tmp/m"
check "user and password open" same "$withuser" -o "manifest=$tmp/m"
same "http://reader:wrong9@127.0.0.1:$plain/private" -o "manifest=$tmp/m"
check "wrong ones do not" says "HTTP status 401"
check "a query is sent with every request" same "$http/token?sig=secret8" -o "manifest=$tmp/m"
same "$http/token?sig=wrong9" -o "manifest=$tmp/m"
check "a wrong one opens nothing" says "HTTP status 403"
check "messages have none of it" test "$(grep -c wrong9 "$tmp/out")" = 0

# TLS is verified.
if [ -n "$tls_ok" ]; then
	https=https://127.0.0.1:$tls
	check "TLS, by a known authority" same "$https/run" -o "ca_file=$tmp/ca.pem"
	same "$https/run"
	check "not by an unknown one" says "$https/run: .*certificate"
	check "a redirect to https is followed" same "$http/better" -o "ca_file=$tmp/ca.pem,manifest=$tmp/m"
	same "$https/worse" -o "ca_file=$tmp/ca.pem,manifest=$tmp/m" && fail "a redirect from https to http was followed"
	check "one to http is not" says "Protocol .*http"
else
	echo "no openssl: TLS is not shown"
fi

# Through a mount.
require_fuse
mount_remote "$http/run"
check "the view is that of the run" diff -r "$tmp/local" "$tmp/mnt/${tag}_universal"
check "so are the files" diff -r "$good/$name" "$tmp/www/run"
check "under their names" cmp "$good/$name/latest" "$tmp/mnt/latest"
for f in "$good/$name/$tag"/*; do
	check "$f is the server's" cmp "$f" "$tmp/mnt/$tag/$(basename "$f")"
done
f=$(find "$tmp/mnt/${tag}_universal" -name fp32.pt | head -n 1)
ucckpt extents "$f" >"$tmp/out"
check "extents tell the URL" says " remote .* $http/run/$tag/"
unmount

mount_remote "$withuser" -o "manifest=$tmp/m"
grep -r secret7 "$tmp/mnt/.ucfs" /proc/mounts "/proc/$server/cmdline" "$tmp/log" && fail "a password shows"
unmount

# The run has many files beside its tags: none is requested.
cp -r "$tmp/www/run" "$tmp/www/many"
touch "$tmp/www/many/"{1..3000}
heads() { count '"HEAD /many/'; }
check "many names: info" ucckpt info "$http/many" >"$tmp/out" 2>&1
check "many names: info asks for few: $(heads)" test "$(heads)" -lt 200
mount_remote "$http/many"
check "many names: all are listed" test "$(find "$tmp/mnt" -maxdepth 1 -name '[1-9]*' | wc -l)" = 3000
check "many names: and a mount: $(heads)" test "$(heads)" -lt 400
unmount
rm -r "$tmp/www/many"

# Share the mount with other users.
if [ "$(id -u)" != 0 ] || ! command -v setpriv >/dev/null; then
	echo "only root can become other users: allow_other is not shown"
	finish
fi
chmod 755 "$tmp"
chmod -R a+rX "$tmp/local" "$tmp/www"
# as_other COMMAND...: run it as a user that owns nothing.
as_other() { setpriv --reuid=65533 --regid=65533 --clear-groups "$@"; }
# shared SOURCE [OPTION]: every user can read the view and the files.
shared() {
	mount_remote "$1" -o "allow_other${2:+,$2}"
	check "$1: another user reads the view" as_other diff -r "$tmp/local" "$tmp/mnt/${tag}_universal"
	check "$1: and the files" as_other cmp "$tmp/www/run/latest" "$tmp/mnt/latest"
	unmount
}
cp "$tmp/www/run/latest" "$tmp/www/n0"
shared "$http/run"
shared "$withuser" "manifest=$tmp/m"
shared "{$http/n0,$tmp/www/n1}"
chmod 700 "$tmp/www/n1"
mount_remote "{$http/n0,$tmp/www/n1}" -o allow_other
check "a directory among the roots keeps its users" as_other test ! -r "$tmp/mnt/latest"
unmount
finish
