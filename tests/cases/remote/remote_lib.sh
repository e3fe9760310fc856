# SPDX-License-Identifier: Apache-2.0
# Shared by the cases of this folder, after lib.sh: servers on the loopback.  Cases
# put what is served below $tmp/www.
#
#   free_port        prints a port that nobody listens at
#   start_nginx      serves $tmp/www by nginx with $tmp/nginx.conf's server blocks
#   stop_server PID  ends a server
#   count PATTERN    requests whose line in nginx's log matches
#   sent FILE        bytes of a file in $tmp/www that nginx has sent in ranges

# Do not use proxies of the environment.
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY all_proxy
export no_proxy='*'
servers=()

require_curl() {
	if ucckpt info http://127.0.0.1:1/ 2>&1 | grep -q 'built without libcurl'; then
		skip "built without libcurl"
	fi
}

# shellcheck disable=SC2317 # called by the trap
end_servers() {
	local pid
	for pid in "${servers[@]}"; do
		kill "$pid" 2>/dev/null
		wait "$pid" 2>/dev/null
	done
	cleanup
}
trap end_servers EXIT

stop_server() {
	kill "$1" 2>/dev/null
	wait "$1" 2>/dev/null
}

listens() {
	(exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

free_port() {
	local port
	while :; do
		port=$((20000 + (RANDOM << 1 ^ RANDOM) % 12000))
		listens "$port" || break
	done
	echo "$port"
}

# await PORT PID: wait until the server listens.
await() {
	for _ in $(seq 200); do
		listens "$1" && return
		kill -0 "$2" 2>/dev/null || break
		sleep 0.05
	done
	echo "a server does not start:"
	cat "$tmp"/*.err 2>/dev/null
	exit 1
}

# start_nginx PORT: listen there with the server blocks of $tmp/servers.conf.
start_nginx() {
	{
		[ "$(id -u)" != 0 ] || echo 'user root;'
		cat <<-END
			daemon off;
			pid $tmp/nginx.pid;
			error_log $tmp/nginx.err;
			worker_processes 1;
			events { worker_connections 512; }
			http {
				access_log $tmp/access.log;
				client_body_temp_path $tmp/nginx-body;
				proxy_temp_path $tmp/nginx-proxy;
				fastcgi_temp_path $tmp/nginx-fastcgi;
				uwsgi_temp_path $tmp/nginx-uwsgi;
				scgi_temp_path $tmp/nginx-scgi;
				root $tmp/www;
				$(cat "$tmp/servers.conf")
			}
		END
	} >"$tmp/nginx.conf"
	nginx -p "$tmp" -e "$tmp/nginx.err" -c "$tmp/nginx.conf" &
	nginx=$!
	servers+=("$nginx")
	await "$1" "$nginx"
}

count() {
	grep -c -- "$1" "$tmp/access.log"
}

sent() {
	awk -v file="/$1" '$7 == file && $9 == 206 { n += $10 } END { print n + 0 }' "$tmp/access.log"
}

# Mount one source with options in the background, with the log in $tmp/log.
mount_remote() {
	mount_fg "$@" || finish
}
