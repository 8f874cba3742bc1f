# Read by cpack for each of its packages: the .deb puts the folder in /opt/weir, the tarball holds the folder itself.
if(CPACK_GENERATOR STREQUAL "TGZ")
  set(CPACK_PACKAGING_INSTALL_PREFIX "/")
endif()
