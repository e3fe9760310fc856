#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The completions of bash, zsh and fish offer exactly the options in the programs' --help, and the
# mount options in the manual.  Each shell is asked for the candidates of a line as a user would
# have typed it.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../cases/lib.sh"
completions=$(realpath "$top_srcdir")/completions

# The library's list of views.
views=$(ucckpt convert --view "" a b 2>&1 | sed -n 's/.*must be \([^;]*\).*/\1/p' | sed 's/,//g; s/ or / /')
check "views of --help" grep -qF -e "--view ${views// /|}" <(ucckpt convert --help)
check "views of ucckpt(1)" grep -qF -e "-view Ar ${views// / | }" "$completions/../man/ucckpt.1"

# Values offered after LINE.
values='
ucckpt convert --crc |exact zero
ucckpt convert --view |'"$views"'
ucckpt convert --stage |native any 1 2 3
ucckpt convert --hf_dtype |fp32 bf16 fp16
ucckpt convert --dcp_style |fsdp2 flat titan titan_fused accelerate lightning fabric
ucckpt convert --preset |megatron-qkv-thirds megatron-qkv-by-head
ucfs a b -o crc=|exact zero
ucfs a b -o ro,stage=|native any
ucfs a b -o view=|'"$views"'
ucfs a b -o dcp_style=|fsdp2 flat titan titan_fused accelerate lightning fabric
ucfs a b -o hf_dtype=|fp32 bf16 fp16
ucfs a b -o preset=|megatron-qkv-thirds megatron-qkv-by-head
uctrain --model |gpt2-dsuc gpt2 gpt2-medium gpt2-large gpt2-xl
uctrain --dtype |fp32 bf16 fp16
uctrain --partition_method |parameters uniform type:transformer
uctrain --zero_stage |0 1 2 3
uctrain --names |hf megatron
uctrain --optimizer |Adam AdamW
uctrain --lr_schedule |constant warmup cosine
uctrain --device |cpu cuda
uctrain --cuda_graph |auto on off
'

# candidates_of_SHELL reads lines, and writes one file for each, $tmp/SHELL/NUMBER.

candidates_of_bash() {
	local line n=0 program words
	while IFS= read -r line; do
		program=${line%% *}
		# Split into words like readline, which also breaks at =.
		read -r -a words <<<"${line//=/ = }"
		[ "${line% }" = "$line" ] && [ "${line%=}" = "$line" ] || words+=("")
		[ "${line%=}" = "$line" ] || words=("${words[@]:0:${#words[@]}-1}")
		bash --norc -c '
			compopt() { :; } # only for readline
			. "$1"
			shift
			COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
			"_$1"
			printf "%s\n" "${COMPREPLY[@]}"' \
			sh "$completions/$program" "${words[@]}" >"$tmp/bash/$n" 2>&1
		n=$((n + 1))
	done
}

# In an interactive zsh on its own terminal, compadd records its arguments.
candidates_of_zsh() {
	cat >"$tmp/ask.zsh" <<-'EOF'
	# ask.zsh DIRECTORY-OF-COMPLETIONS FILE-OF-LINES DIRECTORY-OF-ANSWERS
	zmodload zsh/zpty
	zpty shell zsh -f -i
	zpty -w shell "dirs=($1) lines=$2 answers=$3"
	zpty -w shell 'fpath=($dirs $fpath); LISTMAX=10000; autoload -Uz compinit; compinit -u -D'
	zpty -w shell 'compadd() {
		local -a seen
		if [[ " $* " != *" -"[OAD]" "* ]]; then
			builtin compadd -A seen "$@"
			print -rl -- $seen >>$answers/$n
		fi
		builtin compadd "$@"
	}'
	zpty -w shell 'ask() {
		n=0
		while IFS= read -r BUFFER; do
			: >$answers/$n
			CURSOR=$#BUFFER
			zle list-choices
			(( n++ ))
		done <$lines
		exit
	}'
	zpty -w shell 'zle -N ask; bindkey "^T" ask'
	zpty -w -n shell $'\x14'
	while zpty -r shell; do :; done >/dev/null
	EOF
	cat >"$tmp/lines"
	timeout 60 zsh -f "$tmp/ask.zsh" "$completions/zsh" "$tmp/lines" "$tmp/zsh"
}

candidates_of_fish() {
	local line n=0
	while IFS= read -r line; do
		HOME=$tmp fish -c 'source $argv[1]; complete -C $argv[2]' \
			"$completions/fish/${line%% *}.fish" "$line" >"$tmp/fish/$n" 2>&1
		n=$((n + 1))
	done
	# Remove descriptions.
	sed -i 's/\t.*//' "$tmp"/fish/*
}

# Lines to complete, with the candidates that count and the expected ones.
lines=()
kinds=()
expected=()
ask() {
	lines+=("$1")
	kinds+=("$2")
	expected+=("$(sort -u <<<"$3")")
}

# uctrain's --help has the most important options.
long_options_of() {
	local help=--help
	[ "$1" != uctrain ] || help=--help=all
	"$@" "$help" | grep -oE '^ +(-[a-zA-Z], )?--[a-z][a-z_-]*' | grep -oE -- '--.*'
}

commands_of() {
	"$@" --help | sed -n 's/^  \([a-z]\+\) .*/\1/p'
}

# The options in the manual: ".It Cm uid Ns = Ns Ar number , Cm gid Ns = ...".
mount_options() {
	awk '
	/^The mount options are:/ { list = 1 }
	!list { next }
	/^\.El/ { exit }
	sub(/^\.It Cm /, "") { print }
	' "$completions/../man/ucfs.1" | sed 's/ , /\n/g' | sed -nE 's/^(Cm )?([a-z0-9_]+).*/\2/p'
}

mount_options_of_help() {
	ucfs --help | sed -nE 's/^        ([a-z0-9_]+).*/\1/p'
}

programs=(ucckpt ucplot)
[ ! -x "$top_builddir/ucfs" ] || programs+=(ucfs)
[ ! -x "$top_builddir/uctrain" ] || programs+=(uctrain)
for program in "${programs[@]}"; do
	case $program in
	ucckpt)
		ask "ucckpt " word "$(commands_of ucckpt)"
		for command in $(commands_of ucckpt); do
			ask "ucckpt $command --" option "$(long_options_of ucckpt "$command")"
		done
		;;
	ucfs)
		ask "ucfs a b -o " mount "$(mount_options)"
		check "ucfs --help has ten options" test "$(mount_options_of_help | wc -l)" = 10
		check "of the manual" test -z "$(mount_options_of_help | grep -v -x -F -e "$(mount_options)")"
		ask "ucfs a b -o ro,ch" mount "check"
		;;
	esac
	ask "$program --" option "$(long_options_of "$program")"
	while IFS='|' read -r line words; do
		[ "${line%% *}" != "$program" ] || ask "$line" value "${words// /$'\n'}"
	done <<<"$values"
done

# count KIND <CANDIDATES: print the candidates that count.
count() {
	case $1 in
	option) grep -oE -- '^--[a-z][a-z_-]*' ;;
	word) grep -v -e '^-' -e '/$' | sed 's/ $//' ;;
	mount) sed 's/.*,//' | grep -oE '^[a-z0-9_]+' ;;
	value) sed 's/^[^ ]*=//; s/ $//' | grep -v '^$' ;;
	esac | sort -u
}

cd "$tmp" || exit 1 # an empty directory: files would be candidates
asked=0
for shell in bash zsh fish; do
	if ! command -v "$shell" >/dev/null; then
		echo "not asked: no $shell"
		continue
	fi
	asked=$((asked + 1))
	mkdir "$tmp/$shell"
	printf '%s\n' "${lines[@]}" | "candidates_of_$shell"
	for i in "${!lines[@]}"; do
		differences=$(diff <(count "${kinds[i]}" <"$tmp/$shell/$i") <(echo "${expected[i]}")) ||
			fail "$shell: '${lines[i]}': is offered (<), should be (>):
$differences"
	done
done
check "a shell was asked" test "$asked" -gt 0
finish
