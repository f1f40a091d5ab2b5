# Which flags each ioctl takes on each kind of inode, and what GETFLAGS shows then.
use strict; use warnings; use Fcntl;
sub flags { my $a = pack('L2', 0, 0); open(my $f, '<', $_[0]) or return 0; ioctl($f, 0x80086601, $a); (unpack 'L2', $a)[0] }
sub xflags { my $a = "\0" x 28; open(my $f, '<', $_[0]) or return 'open'; ioctl($f, 0x801c581f, $a) or return "$!"; sprintf '%x/%d', (unpack 'L7', $a)[0,3] }
my $FS = 0x40086602; my $X = 0x401c5820;
sub fresh { system('chattr', '-R', '-ia', 't') if -e 't'; system('rm', '-rf', 't'); mkdir 't'; mkdir 't/d'; mkdir 't/full'; for ('t/f', 't/full/x') { open(my $f, '>', $_); syswrite($f, 'x' x 10000) unless $_ eq 't/f' && $ENV{EMPTY}; } }
for my $bit (0..31) { my $b = 1 << $bit; next if $b == 0x80000; for my $p ('t/f', 't/d', 't/full') { fresh(); my $old = flags($p); open(my $f, '<', $p);
   my $on = ioctl($f, $FS, pack('L2', $old ^ $b, 0)) ? 'ok' : "$!"; my $now = flags($p); my $off = ioctl($f, $FS, pack('L2', $old, 0)) ? 'ok' : "$!";
   printf "SETFLAGS %08x %s: %s %s; %x %x %x\n", $b, $p, $on, $off, $old, $now, flags($p); } }
for my $bit (0..31) { my $b = 1 << $bit; for my $p ('t/f', 't/d') { for my $project (0, 9) { fresh(); open(my $f, '<', $p);
   my $on = ioctl($f, $X, pack('L7', $b, 0, 0, $project, 0, 0, 0)) ? 'ok' : "$!"; # Refused because of the project: the kernel has set the flags by then.
   printf "SETXATTR %08x %d %s: %s", $b, $project, $p, $on; printf ' %s %x', xflags($p), flags($p) if $on eq 'ok'; print "\n"; } } }
# extent size hints
for my $p ('t/f', 't/d') { fresh(); open(my $f, '<', $p); my $on = do { my $a = pack("L7", 0, 8192, 0, 0, 0, 0, 0); ioctl($f, $X, $a) } ? 'ok' : "$!"; print "extsize $p: $on\n"; }
# on what is immutable
for my $b (0x80010, 0x80050, 0x80040, 0x80020, 0x80030, 0x80000) { fresh(); open(my $f, '<', 't/f'); ioctl($f, $FS, pack('L2', flags('t/f') | 0x10, 0)); my $on = ioctl($f, $FS, pack('L2', $b, 0)) ? 'ok' : "$!"; printf "immutable to %x: %s %x\n", $b, $on, flags('t/f'); }
# of others
for my $uid (1, 2) { for my $b (0x10, 0x20, 0x40, 0x8, 0x4000, 0x20000000) { fresh(); chown 1, 1, 't/f', 't/d'; chmod 0777, '.', 't'; for my $p ('t/f', 't/d') { my $old = flags($p); my $is = $>; $> = $uid; open(my $f, '<', $p); my $on = ioctl($f, $FS, pack('L2', $old | $b, 0)) ? 'ok' : "$!"; my $x = do { my $a = pack("L7", 0, 0, 0, 5, 0, 0, 0); ioctl($f, $X, $a) } ? 'ok' : "$!"; $> = 0; printf "uid %d %x %s: %s %s\n", $uid, $b, $p, $on, $x; } } }
# inherited
for my $b (0x1, 0x2, 0x4, 0x8, 0x10, 0x20, 0x40, 0x80, 0x4000, 0x8000, 0x10000, 0x20000, 0x2000000, 0x20000000, 0x40000000) { fresh(); open(my $f, '<', 't/d'); ioctl($f, $FS, pack('L2', flags('t/d') | $b, 0)) or next; mkdir 't/d/e' or next; open(my $g, '>', 't/d/g'); symlink 'x' x 100, 't/d/s'; printf "inherited %x: dir %x file %x\n", $b, flags('t/d/e'), flags('t/d/g'); }
fresh(); system('rm -rf t');
