# uckpt_pack and uckpt_unpack: what goes into a pack, and what can be left out of it.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/pack_inputs.h %D%/pack_inputs.c \
	%D%/pack_derive.c \
	%D%/packing.c
