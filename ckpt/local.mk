# Understands checkpoints; knows nothing of FUSE or GPUs.  Rooms are in the order
# in which they may use each other: a file includes only what stands above it,
# here and in its room's list, and calls no room below its own
# (tests/lint/layers.sh).

# For programs that use the rooms themselves.
noinst_LIBRARIES += %D%/libuckpt.a
%C%_libuckpt_a_SOURCES = %D%/uckpt.h
# Each needs the other.
ckpt_archives = %D%/libuckpt.a $(ckpt_transport) %D%/libuckpt.a %D%/base/libucbase.a
ckpt_static_archives = %D%/libuckpt.a %D%/remote/libucnocurl.a %D%/base/libucbase.a
ckpt_needs = $(CJSON_LIBS) $(ZLIB_LIBS) $(ISAL_LIBS) $(ZSTD_LIBS) $(XXHASH_LIBS) \
	$(PCRE2_LIBS) $(NETTLE_LIBS) -lm
ckpt_libs = $(ckpt_archives) $(ckpt_needs)

# The same objects as a shared library, of which programs see the functions of uckpt.h.
# The number changes when programs have to be compiled again.
include_HEADERS = %D%/uckpt.h
uckpt_objects = $(%C%_libuckpt_a_OBJECTS) $(%C%_base_libucbase_a_OBJECTS)
# The sanitizers' functions are the program's.
if !ENABLE_SANITIZE
uckpt_complete = -Wl,-z,defs
endif
noinst_DATA = libuckpt.so
libuckpt.so.0: $(uckpt_objects) $(ckpt_transport)
	$(AM_V_CCLD)$(LINK) -shared -Wl,-soname,$@ $(uckpt_complete) \
		$(uckpt_objects) $(ckpt_transport) $(ckpt_needs) $(LIBS)
libuckpt.so: libuckpt.so.0
	$(AM_V_GEN)$(LN_S) -f $< $@
CLEANFILES += libuckpt.so libuckpt.so.0

install-exec-local: install-uckpt
install-uckpt: libuckpt.so.0
	$(MKDIR_P) '$(DESTDIR)$(libdir)'
	$(INSTALL_DATA) libuckpt.so.0 '$(DESTDIR)$(libdir)/libuckpt.so.$(PACKAGE_VERSION)'
	cd '$(DESTDIR)$(libdir)' && \
		$(LN_S) -f libuckpt.so.$(PACKAGE_VERSION) libuckpt.so.0 && \
		$(LN_S) -f libuckpt.so.0 libuckpt.so
uninstall-local: uninstall-uckpt
uninstall-uckpt:
	cd '$(DESTDIR)$(libdir)' && \
		rm -f libuckpt.so libuckpt.so.0 libuckpt.so.$(PACKAGE_VERSION)

# What programs link that use uckpt.h alone, as PROGRAM_LDADD and PROGRAM_LDFLAGS.  In the
# build directory they find the library beside them; those of uckpt_programs are linked
# again when they are installed, and find it there.
uckpt_libs = libuckpt.so.0 %D%/base/libucbase.a $(CJSON_LIBS)
uckpt_ldflags = $(AM_LDFLAGS) $(uckpt_rpath)
uckpt_rpath = -Wl,-rpath,'$$ORIGIN'
uckpt_programs =
installed/%: private uckpt_rpath = \
	$(if $(filter /lib% /usr/lib%,$(libdir)),,-Wl,-rpath,'$(libdir)')
installed/%: %
	$(AM_V_at)$(MKDIR_P) $(@D)
	$(AM_V_CCLD)$($*_LINK) $($*_OBJECTS) $($*_LDADD) $(LIBS)
install-uckpt-programs: $(uckpt_programs:%=installed/%)
	for p in $(uckpt_programs); do \
		$(INSTALL_PROGRAM) installed/$$p '$(DESTDIR)$(bindir)' || exit; \
	done
clean-uckpt:
	rm -rf installed
.PHONY: install-uckpt uninstall-uckpt install-uckpt-programs clean-uckpt

include %D%/base/local.mk
include %D%/remote/local.mk
include %D%/format/local.mk
include %D%/pack/local.mk
include %D%/io/local.mk
include %D%/vfile/local.mk
include %D%/table/local.mk
include %D%/zero/local.mk
include %D%/foreign/local.mk
include %D%/views/local.mk
include %D%/tree/local.mk
include %D%/commands/local.mk
