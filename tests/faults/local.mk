# Faults of the operating system, preloaded: a short run in `make check`, a long one
# by `make campaign`.
scripts += %D%/short.sh
check_DATA = %D%/faults.so
%D%/faults.so: %D%/faults.c
	@$(MKDIR_P) %D%
	$(AM_V_CC)$(CC) $(CPPFLAGS) -D_GNU_SOURCE -std=gnu11 -Wall -Wextra -O2 -g -fPIC \
		-shared -o $@ $< -ldl
CLEANFILES += %D%/faults.so
EXTRA_DIST += %D%/faults.c %D%/parts.sh %D%/campaign %D%/RESULTS.md
