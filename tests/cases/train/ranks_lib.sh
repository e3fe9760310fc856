# SPDX-License-Identifier: Apache-2.0
# Shared by cases that train without a network (ranks_checkpoint.c), on top of lib.sh.  Starting
# ranks takes longer than such a run, so one start has many runs:
#
#   later N NAME KEY=VALUE...     a run on N ranks, which waits for
#   start          which starts all that wait
#   said NAME      what it said
#   state NAME     its state in the end
#   same "what" WANT NAME      is it this one?
#   did NAME       has it done all that it was to do?
#   refused "what" PATTERN NAME   did it fail, and say PATTERN?

# shellcheck source=tests/cases/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
# shellcheck source=tests/cases/mpi.sh
. "$(dirname "${BASH_SOURCE[0]}")/../mpi.sh"
require_mpi

program=$top_builddir/tests/programs/ranks_checkpoint
[ -x "$program" ] || skip "the trainer was not built"

later() {
	ranks_later "$1" "name=$2" "${@:3}"
}

start() { ranks_start start_program; }

# What each run said, and its states, by its name.
declare -A said_by state_of

# start_program N WORD...
start_program() {
	local line name

	on_ranks "$1" "$program" "${@:2}" >"$tmp/said" 2>"$tmp/words" ||
		fail "$1 ranks: $(tail -n 30 "$tmp/words")"
	while IFS= read -r line; do
		name=${line%%: *} line=${line#*: }
		said_by[$name]+=$line$'\n'
		[[ $line != "step "* ]] || state_of[$name]+=${state_of[$name]+$'\n'}$line
	done <"$tmp/said"
}

said() {
	printf '%s' "${said_by[$1]-}"
}

state() {
	printf '%s' "${state_of[$1]-}"
}

same() {
	local got=${state_of[$3]-}
	if [ -z "$got" ] || [ "$got" != "$2" ]; then
		fail "$1: $(said "$3"), not $2"
	fi
}

did() {
	[ "$(said "$1" | tail -n 1)" = done ] || fail "$1: $(said "$1")"
}

refused() {
	said "$3" | grep -q -e "^failed: .*$2" || fail "$1: $(said "$3")"
}
