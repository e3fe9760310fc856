# ucckpt pack and unpack: what goes into a pack, and what can be left out of it.
# Uses the rooms above.  May print.
ucckpt_SOURCES += \
	%D%/pack_inputs.h %D%/pack_inputs.c \
	%D%/pack_derive.h %D%/pack_derive.c \
	%D%/cmd_pack.h %D%/cmd_pack.c
