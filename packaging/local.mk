# What is handed to others: static programs, Debian packages, a Python wheel.
# tests/lint/packages.sh installs them into fresh roots.

# For programs that include ucfs/ucfs_ioctl.h, and for those that use the library.
pkgconfigdir = $(libdir)/pkgconfig
pkgconfig_DATA = %D%/ucfs.pc %D%/uckpt.pc

if BUILD_FUSE
systemdunit_DATA = %D%/systemd/ucfs@.service
endif
%D%/systemd/ucfs@.service: %D%/systemd/ucfs@.service.in Makefile
	$(AM_V_GEN)$(MKDIR_P) $(@D) && sed 's|@bindir[@]|$(bindir)|' \
		'$(srcdir)/$@.in' >$@.tmp && mv $@.tmp $@
CLEANFILES += %D%/systemd/ucfs@.service

# One file each that runs on any Linux of this architecture.  Only the link
# differs from the other programs'.
static_libs = libcjson zlib libisal libzstd libxxhash libpcre2-8 nettle
static_dir = $(abs_builddir)/static
static_link = $(CC) $(AM_CFLAGS) $(CFLAGS) $(AM_LDFLAGS) -static -s -o $@
static_pkg_config = PKG_CONFIG_PATH='$(static_dir)/lib/pkgconfig' \
	$(PKG_CONFIG) --static --libs
static_programs = static/ucckpt
if BUILD_FUSE
static_programs += static/ucfs
endif

static: $(static_programs)
static/ucckpt: $(ucckpt_OBJECTS) $(ckpt_static_archives) static/libraries.stamp
	$(AM_V_CCLD)$(static_link) $(ucckpt_OBJECTS) $(ckpt_static_archives) \
		`$(static_pkg_config) $(static_libs)` -lm
static/ucfs: $(ucfs_OBJECTS) $(ckpt_static_archives) static/libraries.stamp
	$(AM_V_CCLD)$(static_link) $(ucfs_OBJECTS) $(ckpt_static_archives) \
		`$(static_pkg_config) fuse3 $(static_libs)` -lm
static/libraries.stamp: %D%/static-libs.sh
	$(AM_V_GEN)CC='$(CC)' '$(srcdir)/%D%/static-libs.sh' '$(static_dir)' && touch $@

# The Python package, with a library and programs that need no library but glibc, in the
# version of this machine or a later one.  Needs Python, without any module.
wheel_files = wheeled/lib/libuckpt.so.0 wheeled/bin/ucckpt
if BUILD_FUSE
wheel_files += wheeled/bin/ucfs
endif
wheel_link = $(AM_V_at)$(MKDIR_P) $(@D); \
	$(CC) $(AM_CFLAGS) $(CFLAGS) $(AM_LDFLAGS) -o $@
wheel_program_link = $(wheel_link) -Wl,-rpath,'$$ORIGIN/../lib'
wheel_static_libs = -Wl,-Bstatic \
	`$(static_pkg_config) $(1) | sed 's/-l\(m\|dl\|rt\|pthread\) //g; s/-pthread//g'` \
	-Wl,-Bdynamic -lm -ldl -lrt
wheeled/lib/libuckpt.so.0: $(uckpt_objects) $(ckpt_linked_transport) static/curl.stamp
	$(wheel_link) -shared -Wl,-soname,$(@F),-z,defs,--exclude-libs,ALL \
		$(uckpt_objects) $(ckpt_linked_transport) \
		$(call wheel_static_libs,$(static_libs) libcurl)
wheel_uckpt = wheeled/lib/libuckpt.so.0 ckpt/base/libucbase.a
wheeled/bin/ucckpt: $(ucckpt_OBJECTS) $(wheel_uckpt)
	$(wheel_program_link) $^ $(call wheel_static_libs,libcjson)
wheeled/bin/ucfs: $(ucfs_OBJECTS) $(wheel_uckpt)
	$(wheel_program_link) $^ $(call wheel_static_libs,fuse3 libcjson)
static/curl.stamp: static/libraries.stamp
	$(AM_V_GEN)CC='$(CC)' '$(srcdir)/%D%/static-libs.sh' '$(static_dir)' curl && touch $@

# Stripped afterwards: what ld -s of Debian 11 makes of a library with indirect functions
# cannot be loaded at once.
wheel: $(wheel_files)
	$(AM_V_GEN)rm -rf wheeled/licenses && cp -R static/licenses wheeled && \
		strip $(wheel_files) && SOURCE_DATE_EPOCH="$(release_time)" \
		python3 '$(srcdir)/%D%/wheel.py' $(PACKAGE_VERSION) '$(host_cpu)' \
		'$(srcdir)' . wheeled

# Of a release, as `make dist` packs it; needs debhelper, dpkg-dev and what
# debian/control names.
deb: dist
	$(AM_V_GEN)rm -rf deb && mkdir deb && tar -xf $(distdir).tar.xz -C deb && \
		cd deb/$(distdir) && dpkg-buildpackage -us -uc -b && \
		lintian --fail-on error,warning ../*.changes

# The trainer and its benchmark for a machine where nothing is installed.
# GPU_BUNDLE_CUDA=yes adds NVIDIA's libraries.  Configured with NVCCFLAGS=-lineinfo, profilers
# and compute-sanitizer show lines.
gpu_bundle = ucfs-gpu-$(PACKAGE_VERSION)-$(host_cpu).tar.gz
gpu_bundle_programs = uctrain$(EXEEXT) ucckpt$(EXEEXT) \
	tests/bench/gpuops$(EXEEXT)
if BUILD_FUSE
gpu_bundle_programs += ucfs$(EXEEXT)
endif
if HAVE_CUDA
gpu_bundle_programs += tests/unit/train/test_cuda$(EXEEXT) \
	tests/unit/train/test_graph$(EXEEXT)
endif
gpu-bundle: $(gpu_bundle_programs)
	$(AM_V_GEN)NVCCFLAGS="`cat $(cuda_kernels:.cu=.flags) 2>/dev/null | sort -u | tr '\n' ' '`" \
		'$(srcdir)/%D%/gpu-bundle.sh' $(gpu_bundle) '$(srcdir)' \
		"`test -z '$(GPU_BUNDLE_CUDA)' || echo '$(CUDA_DIRS)'`" \
		$(gpu_bundle_programs)

clean-packages:
	rm -rf static wheeled deb ucfs-*.whl ucfs-gpu-*.tar.gz
.PHONY: static wheel deb gpu-bundle clean-packages
EXTRA_DIST += %D%/static-libs.sh %D%/gpu-bundle.sh %D%/wheel.py \
	%D%/systemd/ucfs@.service.in debian/changelog debian/control \
	debian/copyright debian/rules debian/source/format \
	debian/ucfs.install debian/ucfs-train.install \
	debian/libuckpt0.install debian/libuckpt0.symbols debian/libuckpt-dev.install \
	debian/python3-ucfs.install
